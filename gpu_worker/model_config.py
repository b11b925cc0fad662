"""A model of the Llama family as sizes, and how they are read from a Hugging Face config.json."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_worker.engine import ModelError


@dataclass(frozen=True)
class ModelConfig:
    """Everything about a model but its weights. Biases and norms exist where the family says."""

    num_layers: int
    width: int
    ffn_width: int
    num_heads: int
    num_groups: int  # key/value heads
    head_size: int
    vocab_size: int
    norm_eps: float
    frequencies: tuple[float, ...]  # [D / 2] radians a position; rope scaling is in them
    windows: tuple[int, ...]  # [L] tokens that a layer sees; 0: all
    tied: bool  # the head is the embedding
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_groups:
            raise ModelError(
                f"{self.num_heads} query heads cannot share {self.num_groups} key/value heads"
            )


# What the families differ in, as far as their configuration does not say it.
FAMILIES: dict[str, dict[str, bool]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {},
    "Qwen2ForCausalLM": {"qkv_bias": True},
    "Qwen3ForCausalLM": {"qk_norm": True},
}


def from_hugging_face(config: Mapping[str, Any]) -> ModelConfig:
    """Read a config.json. Raises ModelError, naming what is not supported."""
    family = (config.get("architectures") or ["none"])[0]
    if family not in FAMILIES:
        supported = ", ".join(FAMILIES)
        raise ModelError(f"architecture {family} is not supported; supported: {supported}")
    _refuse_what_would_be_ignored(config)
    heads, width = config["num_attention_heads"], config["hidden_size"]
    head_size = config.get("head_dim") or width // heads
    biased = bool(config.get("attention_bias", False))
    differences = {"qkv_bias": biased, "out_bias": biased} | FAMILIES[family]
    return ModelConfig(
        num_layers=config["num_hidden_layers"],
        width=width,
        ffn_width=config["intermediate_size"],
        num_heads=heads,
        num_groups=config.get("num_key_value_heads") or heads,
        head_size=head_size,
        vocab_size=config["vocab_size"],
        norm_eps=config["rms_norm_eps"],
        frequencies=_frequencies(config, head_size),
        windows=_windows(config, family),
        tied=bool(config.get("tie_word_embeddings", False)),
        ffn_bias=bool(config.get("mlp_bias", False)),
        **differences,
    )


def _refuse_what_would_be_ignored(config: Mapping[str, Any]) -> None:
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise ModelError(f"activation {activation} is not supported; supported: silu")
    if (factor := config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelError(f"partial_rotary_factor {factor} is not supported; supported: 1")


def _windows(config: Mapping[str, Any], family: str) -> tuple[int, ...]:
    """The sliding window of each layer; the older configurations say it for all or from a layer."""
    layers, window = int(config["num_hidden_layers"]), int(config.get("sliding_window") or 0)
    if kinds := config.get("layer_types"):
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if family == "MistralForCausalLM":
        return (window,) * layers
    first = config.get("max_window_layers", 0) if config.get("use_sliding_window") else layers
    return tuple(window if layer >= first else 0 for layer in range(layers))


# --- Rotary frequencies -----------------------------------------------------------------------
# In float32 throughout, as the models were trained: at position 8,000 it can be told apart.


def _frequencies(config: Mapping[str, Any], head_size: int) -> tuple[float, ...]:
    # Configurations have `rope_theta` and `rope_scaling`, or since 2025 `rope_parameters` for both.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta") or config.get("rope_theta") or 10_000.0
    return scaled(plain_frequencies(theta, head_size), rope)


def plain_frequencies(theta: float, head_size: int) -> Tensor:
    """[D / 2] frequencies without scaling."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
    return 1.0 / torch.pow(torch.tensor(theta), exponents)


def scaled(frequencies: Tensor, rope: Mapping[str, Any]) -> tuple[float, ...]:
    """Frequencies under the scaling that `rope` names: none, linear or llama3."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "linear":
        frequencies = frequencies / rope["factor"]
    elif kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    elif kind != "default":
        raise ModelError(f"rope type {kind} is not supported; supported: default, linear, llama3")
    return tuple(frequencies.tolist())


def _llama3(frequencies: Tensor, rope: Mapping[str, Any]) -> Tensor:
    """Llama 3's scaling: long waves are stretched, short ones kept, between them interpolated."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    context = rope["original_max_position_embeddings"]
    wave_lengths = 2 * math.pi / frequencies
    share: Tensor = ((context / wave_lengths - low) / (high - low)).clamp(0, 1)  # of what is kept
    scaled_down: Tensor = frequencies / rope["factor"]
    return scaled_down.lerp(frequencies, share)


def rotary_table(frequencies: tuple[float, ...], num_positions: int) -> Tensor:
    """[num_positions, D] float32: D/2 cosines, then D/2 sines."""
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = positions[:, None] * torch.tensor(frequencies, dtype=torch.float32)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
