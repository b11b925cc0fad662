"""A GGUF file of the Llama family as a Hugging Face directory in bfloat16.

For servers that read no GGUF: the weights are what those of the file stand for, rounded once, as
our worker rounds them when it loads the file in bfloat16.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from common.gguf_tokenizer import build
from common.model_files import ModelFiles, locate
from gpu_worker.gguf_weights import GgufWeights
from gpu_worker.model_config import ModelConfig
from gpu_worker.weights import open_weights

NAMED = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def write_directory(file: Path, folder: Path) -> None:
    """`folder` appears when it is whole. ValueError where it would not be the same model."""
    files, weights = locate(str(file), Path()), GgufWeights(file)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_weights(weights, partial / "model.safetensors")
    config = config_of(files, weights.config)
    write_json(partial / "config.json", config)
    ends = {name: config[name] for name in ("bos_token_id", "eos_token_id")}
    write_json(partial / "generation_config.json", ends)
    build(files).save(str(partial / "tokenizer.json"))
    write_json(partial / "tokenizer_config.json", tokenizer_config_of(files))
    if open_weights(partial).config != weights.config:
        raise ValueError(f"{file}: has what {partial / 'config.json'} does not say")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def write_weights(weights: GgufWeights, file: Path) -> None:
    names = sorted(weights.names())
    tensors = {name: weights.read(name).to(torch.bfloat16).contiguous() for name in names}
    save_file(tensors, file, metadata={"format": "pt"})  # readers ask for this mark


def config_of(files: ModelFiles, config: ModelConfig) -> dict[str, Any]:
    theta = files.config.get("llama.rope.freq_base", 10_000.0)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": config.width,
        "intermediate_size": config.ffn_width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_groups,
        "head_dim": config.head_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": files.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "tie_word_embeddings": config.tied,
        "bos_token_id": files.bos_token,
        "eos_token_id": list(files.end_tokens),
    }


def tokenizer_config_of(files: ModelFiles) -> dict[str, Any]:
    """The class is the plain one: a class of the model's family would make the tokenizer anew."""
    header = files.config
    tokens = header["tokenizer.ggml.tokens"]
    ids = {name: header.get(f"tokenizer.ggml.{kind}_token_id") for kind, name in NAMED.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": files.context_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": header.get("tokenizer.chat_template"),
        **{name: tokens[token] for name, token in ids.items() if token is not None},
    }


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n")
