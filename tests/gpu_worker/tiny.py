"""Small random models of each family, made by transformers, which is also their truth."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from gpu_worker.engine import Capacity
from gpu_worker.kv_cache import KVCache
from gpu_worker.llama import Llama
from gpu_worker.model_engine import ModelEngine
from gpu_worker.ops import torch_ops
from gpu_worker.processor import HostProcessor, Processor
from gpu_worker.weights import load_model, open_weights

MakeProcessor = Callable[[Llama, KVCache, Capacity], Processor]

VOCAB = 320
CPU = torch.device("cpu")

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "attn_implementation": "eager",
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}

FAMILIES: dict[str, tuple[type[PreTrainedModel], Any]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE)),
    "llama-tied-biased": (
        LlamaForCausalLM,
        LlamaConfig(
            **SIZES,
            rope_parameters=LINEAR_ROPE,
            tie_word_embeddings=True,
            attention_bias=True,
            mlp_bias=True,
        ),
    ),
    "mistral": (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=24, head_dim=32)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=True)),
    "qwen2-windows": (
        Qwen2ForCausalLM,
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=16, max_window_layers=1),
    ),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=32)),
    "biased": (  # with work for several threads, and widths that fill neither task nor panel
        LlamaForCausalLM,
        LlamaConfig(
            **SIZES
            | {
                "vocab_size": VOCAB + 9,
                "hidden_size": 192,
                "intermediate_size": 480,
                "num_attention_heads": 6,
            },
            head_dim=64,
            attention_bias=True,
            mlp_bias=True,
        ),
    ),
}


def make_reference(family: str) -> PreTrainedModel:
    """A model whose weights, norms and biases are all drawn, so that each of them matters."""
    model_class, config = FAMILIES[family]
    generator = torch.Generator().manual_seed(7)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 1.0 if parameter.dim() == 1 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return model


def load(path: Path, num_positions: int = 512) -> Llama:
    return load_model(open_weights(path), torch_ops(), torch.float32, CPU, num_positions)


def on_host(model: Llama, cache: KVCache, _capacity: Capacity) -> Processor:
    return HostProcessor(model, cache)


def make_engine(
    model: Llama,
    *,
    num_blocks: int = 160,
    block_size: int = 8,
    max_rows: int = 64,
    num_host_blocks: int = 0,
    make_processor: MakeProcessor = on_host,
) -> ModelEngine:
    """Its cache begins as NaN: whoever reads what was not written is found out."""
    dtype = model.embedding.dtype
    cache = KVCache.allocate(model.config, num_blocks, block_size, dtype, CPU)
    cache.k.fill_(torch.nan)
    cache.v.fill_(torch.nan)
    longest = min(len(model.cos_sin), num_blocks * block_size)
    capacity = Capacity(
        "tiny", "cpu", num_blocks, block_size, longest, 512, max_rows, num_host_blocks
    )
    return ModelEngine(make_processor(model, cache, capacity), capacity)
