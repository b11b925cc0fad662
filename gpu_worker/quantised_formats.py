"""How quantised checkpoints lay out the weight of a linear layer, and what we make of it.

Axes: I inputs, O outputs, J groups. Words are int32, four or eight bits a weight, the lowest first.

    awq          qweight [I, O / 8] words of outputs in an order of their own; qzeros [J, O / 8]
                 alike; scales [J, O]
    gptq         qweight [I bits / 32, O] words of inputs; qzeros [J, O bits / 32] words of outputs,
                 less 1 in the first version; scales [J, O]; g_idx [I]: the group of each input
    packed       weight_packed [O, I bits / 32] words of inputs; weight_scale [O, J];
                 weight_zero_point [O bits / 32, J] words of outputs; weight_g_idx [I];
                 weight_shape [2]: O and I
    bytes        weight [O, I] int8 or float8_e4m3fn; weight_scale [O, J] or [O] or a single one;
                 weight_zero_point alike, int8

Scales multiply: weight = (level - zero) * scale.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gpu_worker.engine import ModelError
from gpu_worker.quantised import ByteWeight, QuantisedWeight, group_size, grouped

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # in which of a word's eight halves output 0, 1, ... lies
NAN = 0x7F  # of float8_e4m3fn, but for the sign
WORDS = {4: 0x11111111, 8: 0x01010101}  # 1 in each place

Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Format:
    """The tensors of one layer, by the last part of their names, and what becomes of them."""

    name: str
    levels: str  # a layer that has this tensor and `scale` is quantised
    scale: str
    axes: Mapping[str, tuple[int, ...]]  # how many each tensor may have; others may be missing
    convert: Callable[[Tensors, int, int], QuantisedWeight]  # (tensors, O, I)

    def tensors(self) -> tuple[str, ...]:
        return tuple(self.axes)

    def check(self, shapes: Shapes) -> None:
        """Raises ModelError for a tensor of more or fewer axes, or of nothing."""
        for name, shape in shapes.items():
            if len(shape) not in self.axes[name] or 0 in shape:
                raise ModelError(f"{name} of the shape {list(shape)} is not supported")

    def num_bytes(self, shapes: Shapes, num_out: int, num_in: int) -> int:
        """The memory of the converted weight, from the shapes of its tensors.

        At least: without an order of inputs, and of eight bits in one group without zeros.
        """
        self.check(shapes)
        levels, num_groups = shapes[self.levels], _num_groups(shapes[self.scale], num_out)
        is_bytes = self.levels == "weight"
        numbers = levels[0] * levels[1] * (1 if is_bytes else 32)
        bits = 8 if is_bytes else numbers // (num_out * num_in)
        if bits == 8 and num_groups == 1:
            return num_out * (num_in + 4)
        planes, small_groups = bits // 4, num_in // group_size(num_in, num_groups)
        return num_out * (num_in * bits // 8 + 8 * planes * small_groups)


def _from_awq(tensors: Tensors, num_out: int, num_in: int) -> QuantisedWeight:
    levels = _awq_unpacked(tensors["qweight"]).T
    zero = _awq_unpacked(_needed(tensors, "qzeros"))
    return _grouped(levels, tensors["scales"], zero, 4, None, (num_out, num_in))


def _awq_unpacked(words: Tensor) -> Tensor:
    """[..., O / 8] words as [..., O] numbers."""
    numbers = unpacked(words, 4)
    return numbers.view(*words.shape, 8)[..., AWQ_ORDER].flatten(-2)


def _from_gptq(tensors: Tensors, num_out: int, num_in: int, less_one: bool) -> QuantisedWeight:
    qweight, qzeros = tensors["qweight"], _needed(tensors, "qzeros")
    bits = _bits(len(qweight), num_in)
    if less_one:
        _check_words(qzeros)
        # As whole words, since that is how 1 was taken off: a zero of 0 has borrowed from the next.
        qzeros = qzeros + WORDS[bits]
    levels, zero = unpacked(qweight.T, bits), unpacked(qzeros, bits)
    g_idx = tensors.get("g_idx")
    return _grouped(levels, tensors["scales"], zero, bits, g_idx, (num_out, num_in))


def _from_packed(tensors: Tensors, num_out: int, num_in: int) -> QuantisedWeight:
    words, scale = tensors["weight_packed"], tensors["weight_scale"].T
    bits = _bits(words.shape[1], num_in)
    shape = tensors.get("weight_shape")
    if shape is not None and shape.tolist() != [num_out, num_in]:
        raise ModelError(f"weight_shape {shape.tolist()}: the model asks for {[num_out, num_in]}")
    zero = torch.full_like(scale, 1 << bits - 1)
    if "weight_zero_point" in tensors:
        zero = unpacked(tensors["weight_zero_point"].T, bits)[:, :num_out]
    g_idx = tensors.get("weight_g_idx")
    return _grouped(unpacked(words, bits), scale, zero, bits, g_idx, (num_out, num_in))


def _from_bytes(tensors: Tensors, num_out: int, num_in: int) -> QuantisedWeight:
    values, scale = tensors["weight"], tensors["weight_scale"].float()
    num_groups = _num_groups(tuple(scale.shape), num_out)
    if num_groups > 1:
        _check_shape(scale.shape, (num_out, num_groups))
    scale = scale.expand(num_out, 1) if scale.numel() == 1 else scale.view(num_out, -1)
    if values.dtype == torch.int8:
        zero = torch.full_like(scale, 128.0)
        if "weight_zero_point" in tensors:
            zero += _like(zero, tensors["weight_zero_point"].float())
        levels = values.view(torch.uint8) ^ 128
        return _grouped(levels, scale.T, zero.T, 8, None, (num_out, num_in))
    if values.dtype != torch.float8_e4m3fn or num_groups > 1:
        kind = str(values.dtype).removeprefix("torch.")
        raise ModelError(
            f"weights of {kind} with {num_groups} scales an output are not supported; "
            "supported: float8_e4m3fn with one, int8"
        )
    _check_shape(values.shape, (num_out, num_in))
    if bool((values.view(torch.uint8) & NAN == NAN).any()):
        raise ModelError("a weight is not a number")
    return ByteWeight(values, scale.flatten().contiguous())


_GRID = {"qweight": (2,), "scales": (2,), "qzeros": (2,)}
_PACKED = {"weight_packed": (2,), "weight_scale": (2,), "weight_zero_point": (2,)}
_BYTES = {"weight": (2,), "weight_scale": (0, 1, 2), "weight_zero_point": (0, 1, 2)}
AWQ = Format("awq", "qweight", "scales", _GRID, _from_awq)
GPTQ, GPTQ_V2 = (
    Format(name, "qweight", "scales", _GRID | {"g_idx": (1,)}, partial(_from_gptq, less_one=less))
    for name, less in (("gptq", True), ("gptq_v2", False))
)
PACKED = Format(
    "packed",
    "weight_packed",
    "weight_scale",
    _PACKED | {"weight_g_idx": (1,), "weight_shape": (1,)},
    _from_packed,
)
BYTES = Format("bytes", "weight", "weight_scale", _BYTES, _from_bytes)


@contextmanager
def naming(layer: str) -> Iterator[None]:
    """What is wrong with a layer is said with its name."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{layer}: {error}") from None


def format_of(formats: Iterable[Format], layer: str, names: Set[str]) -> Format | None:
    """The format of a layer of a checkpoint that has tensors of these names; None: floats."""
    for format_ in formats:
        if {f"{layer}.{format_.levels}", f"{layer}.{format_.scale}"} <= names:
            return format_
    return None


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Numbers of four or eight bits, uint8, from the last axis of int32 words, the lowest first."""
    _check_words(words)
    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return octets
    return torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)


def _grouped(
    levels: Tensor,
    scale: Tensor,
    zero: Tensor,
    bits: int,
    g_idx: Tensor | None,
    shape: tuple[int, int],
) -> QuantisedWeight:
    _check_shape(levels.shape, shape)
    num_groups = len(scale)
    _check_shape(scale.shape, (num_groups, shape[0]))
    _check_shape(zero.shape, (num_groups, shape[0]))
    return grouped(levels, scale, zero, bits, _order(g_idx, shape[1], num_groups))


def _order(g_idx: Tensor | None, num_in: int, num_groups: int) -> Tensor | None:
    """The inputs group by group; None: they are in order. Raises ModelError for unequal groups."""
    if g_idx is None or num_groups == 1 or bool(((g_idx := g_idx.long()) < 0).all()):
        return None
    group_size(num_in, num_groups)  # which they can be cut into
    in_order = torch.arange(num_in, device=g_idx.device) // (num_in // num_groups)
    if torch.equal(g_idx, in_order):
        return None
    order = torch.argsort(g_idx, stable=True)
    if not torch.equal(g_idx[order], in_order):
        raise ModelError("groups of different sizes (g_idx) are not supported")
    return order


def _bits(num_words: int, num_in: int) -> int:
    bits = 32 * num_words // num_in
    if bits not in WORDS or num_words * 32 != num_in * bits:
        raise ModelError(f"{bits} bits a weight are not supported; supported: 4 and 8")
    return bits


def _num_groups(shape: tuple[int, ...], num_out: int) -> int:
    """Groups of inputs, from the shape of the scales: [J, O], [O, J], [O], or a single one."""
    count = math.prod(shape)
    if count in {1, num_out} and count in {1, *shape}:
        return 1
    if len(shape) == 2 and num_out in shape:
        return count // num_out
    raise ModelError(f"scales of the shape {list(shape)} are not supported")


def _like(numbers: Tensor, zero_point: Tensor) -> Tensor:
    """A zero point for each of `numbers`, or a single one for all."""
    if zero_point.numel() not in {1, numbers.numel()}:
        raise ModelError(f"zero points of the shape {list(zero_point.shape)} are not supported")
    return zero_point.expand_as(numbers) if zero_point.numel() == 1 else zero_point.view_as(numbers)


def _needed(tensors: Tensors, name: str) -> Tensor:
    if name not in tensors:
        raise ModelError(f"the model lacks the tensor {name} of a quantised layer")
    return tensors[name]


def _check_words(words: Tensor) -> None:
    if words.dtype != torch.int32:
        kind = str(words.dtype).removeprefix("torch.")
        raise ModelError(f"weights packed into words of {kind} are not supported; supported: int32")


def _check_shape(found: tuple[int, ...], expected: tuple[int, int]) -> None:
    if tuple(found) != expected:
        raise ModelError(
            f"a quantised layer has the shape {list(found)}, the model's sizes ask for "
            f"{list(expected)}"
        )
