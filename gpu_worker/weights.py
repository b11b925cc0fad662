"""Model files to a model, layer by layer: no second copy of all weights is ever in memory.

Of a model that several ranks compute, each reads its own part of each tensor.
"""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.engine import ModelError, Progress, no_progress
from gpu_worker.gguf_weights import GgufWeights
from gpu_worker.llama import Layer, Llama
from gpu_worker.model_config import ModelConfig, rotary_table
from gpu_worker.ops import Linear, Ops
from gpu_worker.parallel import ALONE, Group, gathered, reduced
from gpu_worker.safetensors_weights import SafetensorsWeights
from gpu_worker.shard import Shard, Span, whole


class WeightFile(Protocol):
    """Weights on disk, by their Hugging Face names (`model.layers.0.self_attn.q_proj.weight`)."""

    config: ModelConfig

    def names(self) -> set[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str, *part: slice) -> Tensor:
        """One tensor, or `part` of it, on the CPU, in any float type. Nothing else of it is read.

        Raises ModelError if it cannot be.
        """
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
    group: Group = ALONE,
) -> Llama:
    """The model of `weights`, or this rank's part, for up to `num_positions` tokens of a sequence.

    Raises ModelError, also where it cannot be split over the ranks of `group`.
    """
    config = group.shard.config(weights.config)
    reader = _Reader(weights, ops, dtype, device, group)
    embedding = reader.vocabulary("model.embed_tokens.weight")
    layers = []
    for index, window in enumerate(config.windows):
        progress("loading weights", index / config.num_layers)
        layers.append(reader.layer(f"model.layers.{index}.", window))
    norm = reader.tensor("model.norm.weight", config.width)
    head = embedding if config.tied else reader.vocabulary("lm_head.weight")
    logits = gathered(ops.pack(head, None), group, config.vocab_size)
    reader.refuse_leftovers()
    progress("loading weights", 1.0)
    cos_sin = rotary_table(config.frequencies, num_positions).to(device)
    return Llama(config, ops, embedding, tuple(layers), norm, logits, cos_sin, group)


def weight_bytes(config: ModelConfig, dtype: torch.dtype, shard: Shard = ALONE.shard) -> int:
    """Memory that a rank's weights take at least: without norms, biases and what kernels add."""
    config = shard.config(config)
    attention = 2 * (config.num_heads + config.num_groups) * config.head_size * config.width
    layer = attention + 3 * config.width * config.ffn_width
    outer = shard.padded_tokens(config.vocab_size) * config.width * (1 if config.tied else 2)
    return (config.num_layers * layer + outer) * dtype.itemsize


class _Reader:
    """Takes a rank's part of each tensor out of a file, and remembers which ones it took."""

    def __init__(
        self,
        weights: WeightFile,
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device,
        group: Group,
    ) -> None:
        self._weights = weights
        self._ops = ops
        self._dtype = dtype
        self._device = device
        self._group = group
        self._shard = group.shard
        self._unread = weights.names()

    def layer(self, prefix: str, window: int) -> Layer:
        config, shard = self._weights.config, self._shard
        attention, ffn = prefix + "self_attn.", prefix + "mlp."
        width, middle = whole(config.width), shard.part(config.ffn_width)
        heads = shard.part(config.num_heads, config.head_size)
        groups = shard.groups(config.num_groups, config.head_size)
        qkv = {"q_proj": heads, "k_proj": groups, "v_proj": groups}
        gate_up = {"gate_proj": middle, "up_proj": middle}
        return Layer(
            input_norm=self.tensor(prefix + "input_layernorm.weight", config.width),
            qkv=self._linear(attention, qkv, width, config.qkv_bias),
            q_norm=self._head_norm(attention + "q_norm.weight"),
            k_norm=self._head_norm(attention + "k_norm.weight"),
            out=self._summed(attention + "o_proj", width, heads, config.out_bias),
            ffn_norm=self.tensor(prefix + "post_attention_layernorm.weight", config.width),
            gate_up=self._linear(ffn, gate_up, width, config.ffn_bias),
            down=self._summed(ffn + "down_proj", width, middle, config.ffn_bias),
            window=window,
        )

    def vocabulary(self, name: str) -> Tensor:
        """The rank's rows of the embedding or the head, and zeros where they run out."""
        config, shard = self._weights.config, self._shard
        tokens = shard.tokens(config.vocab_size)
        rows = self._read(name, tokens, whole(config.width))
        padded = torch.zeros(
            (shard.padded_tokens(config.vocab_size), config.width),
            dtype=self._dtype,
            device=self._device,
        )
        padded[: tokens.length] = rows
        return padded

    def tensor(self, name: str, *shape: int) -> Tensor:
        """All of it."""
        return self._read(name, *map(whole, shape)).to(self._device, self._dtype, copy=True)

    def refuse_leftovers(self) -> None:
        """A tensor that nothing reads means a model that we would compute wrongly."""
        harmless = ("rotary_emb.inv_freq", "rope_freqs.weight", "lm_head.weight")
        if left := sorted(name for name in self._unread if not name.endswith(harmless)):
            raise ModelError(f"the model has tensors that are not supported, the first: {left[0]}")

    def _linear(self, prefix: str, parts: dict[str, Span], inputs: Span, has_bias: bool) -> Linear:
        """One layer out of parts that read the same input; `parts` gives their outputs."""
        weight = self._joined(
            [(f"{prefix}{part}.weight", (outputs, inputs)) for part, outputs in parts.items()]
        )
        if not has_bias:
            return self._ops.pack(weight, None)
        bias = self._joined([(f"{prefix}{part}.bias", (span,)) for part, span in parts.items()])
        return self._ops.pack(weight, bias)

    def _summed(self, name: str, outputs: Span, inputs: Span, has_bias: bool) -> Linear:
        """A layer split by input. The first rank alone adds its bias, or it would count twice."""
        adds_bias = has_bias and self._shard.rank == 0
        if has_bias and not adds_bias:
            self._take(f"{name}.bias", (outputs,))
        return reduced(self._linear("", {name: outputs}, inputs, adds_bias), self._group)

    def _joined(self, parts: list[tuple[str, tuple[Span, ...]]]) -> Tensor:
        rows = sum(spans[0].length for _, spans in parts)
        widths = [span.length for span in parts[0][1][1:]]
        joined = torch.empty((rows, *widths), dtype=self._dtype, device=self._device)
        start = 0
        for name, spans in parts:
            stop = start + spans[0].length
            joined[start:stop] = self._read(name, *spans)
            start = stop
        return joined

    def _head_norm(self, name: str) -> Tensor | None:
        config = self._weights.config
        return self.tensor(name, config.head_size) if config.qk_norm else None

    def _read(self, name: str, *spans: Span) -> Tensor:
        self._take(name, spans)
        if not spans[0].length:  # of a vocabulary that ran out
            return torch.empty([span.length for span in spans])
        return self._weights.read(name, *(slice(span.start, span.stop) for span in spans))

    def _take(self, name: str, spans: tuple[Span, ...]) -> None:
        """It is there, nobody else wants it, and it has the size that the model's sizes ask for."""
        if name not in self._unread:
            raise ModelError(f"the model lacks the tensor {name}")
        self._unread.remove(name)
        shape, expected = self._weights.shape(name), tuple(span.size for span in spans)
        if shape != expected:
            raise ModelError(
                f"tensor {name} has the shape {list(shape)}, the model's sizes ask for "
                f"{list(expected)}"
            )
