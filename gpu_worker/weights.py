"""Model files to a model, layer by layer: no second copy of all weights is ever in memory."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.engine import ModelError, Progress, no_progress
from gpu_worker.gguf_weights import GgufWeights
from gpu_worker.llama import Layer, Llama
from gpu_worker.model_config import ModelConfig, rotary_table
from gpu_worker.ops import Linear, Ops
from gpu_worker.safetensors_weights import SafetensorsWeights


class WeightFile(Protocol):
    """Weights on disk, by their Hugging Face names (`model.layers.0.self_attn.q_proj.weight`)."""

    config: ModelConfig

    def names(self) -> set[str]: ...

    def read(self, name: str) -> Tensor:
        """One tensor on the CPU, in any float type. Raises ModelError if it cannot be."""
        ...


def open_weights(path: Path) -> WeightFile:
    """Open a GGUF file, or a directory with config.json and safetensors."""
    try:
        if path.is_dir():
            return SafetensorsWeights(path)
        return GgufWeights(path)
    except (OSError, ValueError, KeyError) as error:
        # What the libraries raise for a file that is cut short, or a config without a field.
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ModelError(f"{path}: cannot be read as a model: {reason}") from error


def load_model(
    weights: WeightFile,
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device,
    num_positions: int,
    progress: Progress = no_progress,
) -> Llama:
    """The model of `weights`, computing up to `num_positions` tokens of a sequence."""
    reader = _Reader(weights, ops, dtype, device)
    config = weights.config
    embedding = reader.tensor("model.embed_tokens.weight", config.vocab_size, config.width)
    layers = []
    for index, window in enumerate(config.windows):
        progress("loading weights", index / config.num_layers)
        layers.append(reader.layer(f"model.layers.{index}.", window))
    norm = reader.tensor("model.norm.weight", config.width)
    head = ops.pack(embedding, None) if config.tied else reader.head()
    reader.refuse_leftovers()
    progress("loading weights", 1.0)
    cos_sin = rotary_table(config.frequencies, num_positions).to(device)
    return Llama(config, ops, embedding, tuple(layers), norm, head, cos_sin)


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Memory that the weights take at least: without norms, biases and what kernels add."""
    attention = 2 * (config.num_heads + config.num_groups) * config.head_size * config.width
    layer = attention + 3 * config.width * config.ffn_width
    outer = config.vocab_size * config.width * (1 if config.tied else 2)
    return (config.num_layers * layer + outer) * dtype.itemsize


class _Reader:
    """Takes tensors out of a file, and remembers which ones."""

    def __init__(
        self, weights: WeightFile, ops: Ops, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._weights = weights
        self._ops = ops
        self._dtype = dtype
        self._device = device
        self._unread = weights.names()

    def layer(self, prefix: str, window: int) -> Layer:
        config = self._weights.config
        attention, ffn = prefix + "self_attn.", prefix + "mlp."
        q_width, kv_width = (
            heads * config.head_size for heads in (config.num_heads, config.num_groups)
        )
        qkv = {"q_proj": q_width, "k_proj": kv_width, "v_proj": kv_width}
        gate_up = {"gate_proj": config.ffn_width, "up_proj": config.ffn_width}
        return Layer(
            input_norm=self.tensor(prefix + "input_layernorm.weight", config.width),
            qkv=self._linear(attention, qkv, config.width, config.qkv_bias),
            q_norm=self._head_norm(attention + "q_norm.weight"),
            k_norm=self._head_norm(attention + "k_norm.weight"),
            out=self._linear(attention, {"o_proj": config.width}, q_width, config.out_bias),
            ffn_norm=self.tensor(prefix + "post_attention_layernorm.weight", config.width),
            gate_up=self._linear(ffn, gate_up, config.width, config.ffn_bias),
            down=self._linear(ffn, {"down_proj": config.width}, config.ffn_width, config.ffn_bias),
            window=window,
        )

    def head(self) -> Linear:
        config = self._weights.config
        return self._ops.pack(self.tensor("lm_head.weight", config.vocab_size, config.width), None)

    def tensor(self, name: str, *shape: int) -> Tensor:
        return self._read(name, shape).to(self._device, self._dtype, copy=True)

    def refuse_leftovers(self) -> None:
        """A tensor that nothing reads means a model that we would compute wrongly."""
        harmless = ("rotary_emb.inv_freq", "rope_freqs.weight", "lm_head.weight")
        if left := sorted(name for name in self._unread if not name.endswith(harmless)):
            raise ModelError(f"the model has tensors that are not supported, the first: {left[0]}")

    def _linear(self, prefix: str, parts: dict[str, int], in_width: int, has_bias: bool) -> Linear:
        """One layer out of parts that read the same input; `parts` gives their output widths."""
        weight = self._joined(
            [(f"{prefix}{part}.weight", (n, in_width)) for part, n in parts.items()]
        )
        if not has_bias:
            return self._ops.pack(weight, None)
        bias = self._joined([(f"{prefix}{part}.bias", (n,)) for part, n in parts.items()])
        return self._ops.pack(weight, bias)

    def _joined(self, parts: list[tuple[str, tuple[int, ...]]]) -> Tensor:
        rows = sum(shape[0] for _, shape in parts)
        joined = torch.empty((rows, *parts[0][1][1:]), dtype=self._dtype, device=self._device)
        start = 0
        for name, shape in parts:
            joined[start : start + shape[0]] = self._read(name, shape)
            start += shape[0]
        return joined

    def _head_norm(self, name: str) -> Tensor | None:
        config = self._weights.config
        return self.tensor(name, config.head_size) if config.qk_norm else None

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self._unread:
            raise ModelError(f"the model lacks the tensor {name}")
        self._unread.remove(name)
        tensor = self._weights.read(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"tensor {name} has the shape {list(tensor.shape)}, the model's sizes ask for "
                f"{list(shape)}"
            )
        return tensor
