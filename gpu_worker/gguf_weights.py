"""The weights of a GGUF file, in every quantisation that the gguf library takes back to floats."""

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.gguf_header import GgufError, TensorEntry, read_directory
from gpu_worker.engine import ModelError
from gpu_worker.model_config import ModelConfig, plain_frequencies, scaled
from gpu_worker.quantised_formats import Format

# General architecture, and what it has that others have not.
FAMILIES: dict[str, dict[str, bool]] = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
}

# Hugging Face's names and GGUF's, without and within a layer.
OUTER_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class GgufWeights:
    """The file is mapped, so that only the tensor being read takes memory."""

    formats: tuple[Format, ...] = ()  # what is quantised in its way is widened as it is read

    def __init__(self, file: Path) -> None:
        try:
            self._fields, entries = read_directory(file)
        except GgufError as error:
            raise ModelError(f"{file}: cannot be read as GGUF ({error})") from None
        self._data: npt.NDArray[np.uint8] = np.asarray(np.memmap(file, np.uint8, mode="r"))
        self._tensors = {_hugging_face_name(entry.name): entry for entry in entries}
        self._family = str(self._fields["general.architecture"])
        if self._family not in FAMILIES:
            supported = ", ".join(FAMILIES)
            raise ModelError(
                f"architecture {self._family} is not supported in GGUF; supported: {supported}"
            )
        self.config = self._config()

    def names(self) -> set[str]:
        return set(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(length) for length in self._tensors[name].shape)

    def num_bytes(self, name: str) -> int:
        block_length, block_bytes = gguf.GGML_QUANT_SIZES[_quantisation(self._tensors[name])]
        return math.prod(self.shape(name)) // block_length * block_bytes

    def read(self, name: str, *part: slice) -> Tensor:
        entry = self._tensors[name]
        kind = _quantisation(entry)
        shape = gguf.quant_shape_to_byte_shape(entry.shape, kind)
        data = self._data[entry.start : entry.start + math.prod(shape)]
        if data.size != math.prod(shape):
            raise ModelError(f"tensor {name} is cut off: the file is not complete")
        try:
            values = _floats(data.reshape(shape), kind, self.shape(name), part)
        except NotImplementedError:
            raise ModelError(f"tensor {name} is quantised as {kind.name}: not supported") from None
        weight = torch.from_numpy(np.require(values, requirements="W"))
        if self._family == "llama" and (heads := self._rotated_heads(name)):
            head_size = int(entry.shape[0]) // heads
            return _unpermuted(weight, len(weight) // head_size)
        return weight

    def _config(self) -> ModelConfig:
        if self._get("expert_count", 0):
            raise ModelError("mixtures of experts are not supported")
        heads, width = self._get("attention.head_count"), self._get("embedding_length")
        head_size = self._get("attention.key_length", width // heads)
        layers = self._get("block_count")
        names = self.names()
        return ModelConfig(
            num_layers=layers,
            width=width,
            ffn_width=self._get("feed_forward_length"),
            num_heads=heads,
            num_groups=self._get("attention.head_count_kv", heads),
            head_size=head_size,
            vocab_size=int(self._tensors["model.embed_tokens.weight"].shape[0]),
            norm_eps=self._get("attention.layer_norm_rms_epsilon"),
            frequencies=self._frequencies(head_size),
            windows=(self._get("attention.sliding_window", 0),) * layers,
            tied="lm_head.weight" not in names,
            **(
                {"qkv_bias": "model.layers.0.self_attn.q_proj.bias" in names}
                | FAMILIES[self._family]
            ),
        )

    def _frequencies(self, head_size: int) -> tuple[float, ...]:
        if (rotated := self._get("rope.dimension_count", head_size)) != head_size:
            raise ModelError(f"rotation of {rotated} of {head_size} dimensions is not supported")
        frequencies = plain_frequencies(self._get("rope.freq_base", 10_000.0), head_size)
        if "rope_freqs.weight" in self._tensors:  # Llama 3's scaling, worked out by the converter
            frequencies = frequencies / self.read("rope_freqs.weight")
        kind = self._get("rope.scaling.type", "none")
        factor = self._get("rope.scaling.factor", 1.0)
        rope = {"rope_type": "default" if kind == "none" else kind, "factor": factor}
        return scaled(frequencies, rope)

    def _get(self, key: str, default: Any = None) -> Any:
        """A field of the architecture; KeyError if it is missing and has no default."""
        full_key = f"{self._family}.{key}"
        if full_key not in self._fields and default is not None:
            return default
        value = self._fields[full_key]
        if isinstance(value, list):
            raise ModelError(f"{full_key} that differs from layer to layer is not supported")
        return value

    def _rotated_heads(self, name: str) -> int:
        """How many heads the weight or bias makes that are rotated; 0: none."""
        if "q_proj" in name:
            return int(self._get("attention.head_count"))
        return int(self._get("attention.head_count_kv")) if "k_proj" in name else 0


def _floats(
    data: npt.NDArray[np.uint8],
    kind: gguf.GGMLQuantizationType,
    shape: tuple[int, ...],
    part: tuple[slice, ...],
) -> npt.NDArray[np.float32]:
    """`part` of a tensor of `shape`: of its last axis, only the blocks that it touches are read."""
    *outer, last = (*part, *[slice(None)] * (len(shape) - len(part)))
    block_length, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    start, stop, _ = last.indices(shape[-1])
    first, end = start // block_length, -(-stop // block_length)
    blocks = data[(*outer, slice(first * block_bytes, end * block_bytes))]
    values = gguf.dequantize(np.ascontiguousarray(blocks), kind)
    first_value = first * block_length
    return values[..., start - first_value : stop - first_value]


def _quantisation(entry: TensorEntry) -> gguf.GGMLQuantizationType:
    try:
        return gguf.GGMLQuantizationType(entry.kind)
    except ValueError:
        raise ModelError(f"tensor {entry.name} has a quantisation that is not known") from None


def _hugging_face_name(name: str) -> str:
    """`model.layers.3.self_attn.q_proj.weight` for `blk.3.attn_q.weight`; others as they are."""
    stem, _, kind = name.rpartition(".")
    outer = {ours: theirs for theirs, ours in OUTER_NAMES.items()}
    if stem in outer:
        return f"{outer[stem]}.{kind}"
    inner = {ours: theirs for theirs, ours in LAYER_NAMES.items()}
    prefix, _, part = stem.rpartition(".")
    if prefix.startswith("blk.") and part in inner:
        return f"model.layers.{prefix.removeprefix('blk.')}.{inner[part]}.{kind}"
    return name


def _unpermuted(weight: Tensor, num_heads: int) -> Tensor:
    """GGUF's llama rotates neighbours, we rotate d with d + D/2: bring the rows back in order."""
    rows = weight.view(num_heads, -1, 2, *weight.shape[1:])  # [H, D / 2, 2, …]
    return rows.transpose(1, 2).reshape(weight.shape)
