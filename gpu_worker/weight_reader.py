"""A rank's part of each tensor out of a checkpoint, as layers on the device.

Whatever is read goes to the device before the next tensor is read.
"""

from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from gpu_worker.engine import ModelError, Progress
from gpu_worker.llama import Layer
from gpu_worker.model_parts import Part, layer_parts
from gpu_worker.ops import Linear, Ops
from gpu_worker.parallel import Group, reduced
from gpu_worker.quantised import QuantisedWeight, joined
from gpu_worker.quantised_formats import Format, format_of, naming
from gpu_worker.shard import Span, whole
from gpu_worker.weight_file import WeightFile

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# What a model can be computed without: tables that we work out, a head that is the embedding, and
# how activations and cache were to be quantised, which stay in 16 bits.
HARMLESS = (
    "rotary_emb.inv_freq",
    "rope_freqs.weight",
    "lm_head.weight",
    *(".input_scale", ".input_scale_ub", ".input_zero_point", ".output_scale"),
    *(".k_scale", ".v_scale", ".q_scale", ".kv_scale"),
)


class WeightReader:
    """Remembers which tensors it took, and tells `progress` how many bytes of all they were."""

    def __init__(
        self,
        weights: WeightFile,
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device,
        group: Group,
        progress: Progress,
    ) -> None:
        self._weights = weights
        self._ops = ops
        self._dtype = dtype
        self._device = device
        self._group = group
        self._progress = progress
        self._names = frozenset(weights.names())
        self._unread = set(self._names)
        self._all_bytes = sum(map(weights.num_bytes, self._unread))
        self._bytes = 0
        self._percent = 0
        progress("loading weights", 0.0)

    def layer(self, prefix: str, window: int) -> Layer:
        config, attention = self._weights.config, prefix + "self_attn."
        parts = layer_parts(config, self._group.shard, prefix)
        return Layer(
            input_norm=self.tensor(prefix + "input_layernorm.weight", config.width),
            qkv=self._linear(parts.qkv, config.qkv_bias),
            q_norm=self._head_norm(attention + "q_norm.weight"),
            k_norm=self._head_norm(attention + "k_norm.weight"),
            out=self._summed(parts.out, config.out_bias),
            ffn_norm=self.tensor(prefix + "post_attention_layernorm.weight", config.width),
            gate_up=self._linear(parts.gate_up, config.ffn_bias),
            down=self._summed(parts.down, config.ffn_bias),
            window=window,
        )

    def vocabulary(self, name: str) -> Tensor:
        """The rank's rows of the embedding or the head, and zeros where they run out."""
        config, shard = self._weights.config, self._group.shard
        tokens = shard.tokens(config.vocab_size)
        rows = shard.padded_tokens(config.vocab_size)
        padded = torch.zeros((rows, config.width), dtype=self._dtype, device=self._device)
        if tokens.length:
            self._fill(padded[: tokens.length], Part(name, tokens, whole(config.width)))
        else:
            self._take(f"{name}.weight")
        return padded

    def tensor(self, name: str, *shape: int) -> Tensor:
        """All of it."""
        return self._read(name, *map(whole, shape)).to(self._device, self._dtype, copy=True)

    def refuse_leftovers(self) -> None:
        """A tensor that nothing reads means a model that we would compute wrongly."""
        left = sorted(name for name in self._unread if not name.endswith(HARMLESS))
        if left := [name for name in left if not self._is_no_bias(name)]:
            raise ModelError(f"the model has tensors that are not supported, the first: {left[0]}")
        self._progress("loading weights", 1.0)

    def _is_no_bias(self, name: str) -> bool:
        """Tools for GPTQ give every layer a bias, of zeros where the model has none."""
        return name.endswith(".bias") and not bool(self._weights.read(name).any())

    def _summed(self, parts: list[Part], has_bias: bool) -> Linear:
        """A layer split by input. The first rank alone adds its bias, or it would count twice."""
        adds_bias = has_bias and self._group.shard.rank == 0
        if has_bias and not adds_bias:
            for part in parts:
                self._take(f"{part.name}.bias")
        return reduced(self._linear(parts, adds_bias), self._group)

    def _linear(self, parts: list[Part], has_bias: bool) -> Linear:
        """One layer out of parts that see the same input."""
        biases = [self._bias(part) for part in parts] if has_bias else []
        bias = torch.cat(biases) if biases else None
        pack = self._ops.pack_quantised
        if pack is None or not any(map(self._format, parts)):
            return self._ops.pack(self._plain(parts), bias)
        weights = [self._weight(part) for part in parts]
        if weight := joined(weights):
            return pack(weight, bias)
        return _beside(
            [
                self._ops.pack(weight, bias) if isinstance(weight, Tensor) else pack(weight, bias)
                for weight, bias in zip_longest(weights, biases)
            ]
        )

    def _plain(self, parts: list[Part]) -> Tensor:
        """[outputs of all parts, inputs] in the model's type, whatever it is in the file."""
        rows, columns = sum(part.outputs.length for part in parts), parts[0].inputs.length
        weight = torch.empty((rows, columns), dtype=self._dtype, device=self._device)
        start = 0
        for part in parts:
            stop = start + part.outputs.length
            self._fill(weight[start:stop], part)
            start = stop
        return weight

    def _fill(self, place: Tensor, part: Part) -> None:
        weight = self._weight(part) if self._format(part) else self._float(part)
        place.copy_(weight if isinstance(weight, Tensor) else weight.widened(self._dtype))

    def _weight(self, part: Part) -> Tensor | QuantisedWeight:
        format_ = self._format(part)
        if format_ is None:
            return self._float(part).to(self._device, self._dtype)
        tensors = {
            suffix: self._whole(f"{part.name}.{suffix}").to(self._device)
            for suffix in format_.tensors()
            if f"{part.name}.{suffix}" in self._unread
        }
        with naming(part.name):
            format_.check({suffix: tuple(tensor.shape) for suffix, tensor in tensors.items()})
            weight = format_.convert(tensors, part.outputs.size, part.inputs.size)
            if part.outputs.length < part.outputs.size:
                weight = weight.outputs(part.outputs.start, part.outputs.stop)
            if part.inputs.length < part.inputs.size:
                weight = weight.inputs(part.inputs.start, part.inputs.stop)
        return weight

    def _format(self, part: Part) -> Format | None:
        return format_of(self._weights.formats, part.name, self._names)

    def _bias(self, part: Part) -> Tensor:
        return self._read(f"{part.name}.bias", part.outputs).to(self._device, self._dtype)

    def _head_norm(self, name: str) -> Tensor | None:
        config = self._weights.config
        return self.tensor(name, config.head_size) if config.qk_norm else None

    def _float(self, part: Part) -> Tensor:
        return self._read(f"{part.name}.weight", part.outputs, part.inputs)

    def _read(self, name: str, *spans: Span) -> Tensor:
        """A part of a tensor of floats."""
        self._take(name)
        shape, expected = self._weights.shape(name), tuple(span.size for span in spans)
        if shape != expected:
            raise ModelError(
                f"tensor {name} has the shape {list(shape)}, the model's sizes ask for "
                f"{list(expected)}"
            )
        tensor = self._weights.read(name, *(slice(span.start, span.stop) for span in spans))
        if tensor.dtype not in FLOATS:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(f"tensor {name} has the type {kind}, which is not supported")
        return tensor

    def _whole(self, name: str) -> Tensor:
        self._take(name)
        return self._weights.read(name)

    def _take(self, name: str) -> None:
        """It is there, and nobody else wants it."""
        if name not in self._unread:
            raise ModelError(f"the model lacks the tensor {name}")
        self._unread.remove(name)
        self._bytes += self._weights.num_bytes(name)
        if (percent := 100 * self._bytes // self._all_bytes) > self._percent:
            self._percent = percent
            self._progress("loading weights", self._bytes / self._all_bytes)


def _beside(linears: Sequence[Linear]) -> Linear:
    """Layers that cannot be joined, since they are quantised differently."""
    return lambda x: torch.cat([linear(x) for linear in linears], dim=-1)
