"""Weights of linear layers in fewer bits than 16, as the kernels take them; joined, cut, widened.

Axes: I inputs, O outputs, Q inputs of a group, J = I / Q groups, P planes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gpu_worker.engine import ModelError
from gpu_worker.kernels.int4_matmul import pack
from gpu_worker.kernels.int8_linear import LARGEST
from gpu_worker.kernels.widen import widen_bytes_reference, widen_int4_reference

# What the kernels take: smaller tiles would be slow, larger ones do not fit. A larger group is
# several of this size with the same scale.
LEAST_GROUP, LARGEST_GROUP = 32, 128


@dataclass(frozen=True)
class ByteWeight:
    """Eight bits a weight and one scale an output: values * scale."""

    values: Tensor  # [O, I] int8, or float8_e4m3fn without NaN
    scale: Tensor  # [O] float32

    @property
    def num_out(self) -> int:
        return len(self.values)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.values, self.scale

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The weight [O, I] as a layer without quantisation would have it."""
        return widen_bytes_reference(self.values, self.scale, dtype)

    def outputs(self, start: int, stop: int) -> "ByteWeight":
        """The part that computes outputs [start, stop)."""
        return ByteWeight(self.values[start:stop].contiguous(), self.scale[start:stop].contiguous())

    def inputs(self, start: int, stop: int) -> "ByteWeight":
        """The part that sees inputs [start, stop)."""
        return replace(self, values=self.values[:, start:stop].contiguous())


def to_bytes(weight: Tensor) -> ByteWeight:
    """A weight [O, I] of floats, rounded to eight bits by the largest of each output."""
    scale = weight.abs().amax(1).float() / LARGEST
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    values = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    for start in range(0, len(weight), 1024):  # little memory in use beside `values`
        rows = slice(start, start + 1024)
        values[rows] = (weight[rows].float() * inverse[rows, None]).round()
    return ByteWeight(values, scale)


@dataclass(frozen=True)
class GroupedWeight:
    """Four bits a weight, and a scale and a zero for each group of inputs: (level - zero) * scale.

    Eight bits are two planes of four, first all groups of high halves, then all of low ones, each
    with a scale of its own: a weight is the sum of its halves.
    """

    packed: Tensor  # [P J, O, Q / 2] uint8, as `kernels/int4_matmul.py` has it
    scale: Tensor  # [P J, O] float32
    zero: Tensor  # [P J, O] float32, whole numbers
    order: Tensor | None = None  # [I] int64: the layer's input that each place sees; None: in order
    planes: int = 1

    @property
    def num_out(self) -> int:
        return self.packed.shape[1]

    def tensors(self) -> tuple[Tensor, ...]:
        order = () if self.order is None else (self.order,)
        return self.packed, self.scale, self.zero, *order

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The weight [O, I] as a layer without quantisation would have it."""
        placed = widen_int4_reference(self.packed, self.scale, self.zero, self.planes, dtype)
        if self.order is None:
            return placed
        return torch.empty_like(placed).index_copy_(1, self.order, placed)

    def outputs(self, start: int, stop: int) -> "GroupedWeight":
        """The part that computes outputs [start, stop)."""
        packed, scale, zero = (
            tensor[:, start:stop].contiguous() for tensor in (self.packed, self.scale, self.zero)
        )
        return replace(self, packed=packed, scale=scale, zero=zero)

    def inputs(self, start: int, stop: int) -> "GroupedWeight":
        """The part that sees inputs [start, stop). Raises ModelError within a group."""
        group = 2 * self.packed.shape[2]
        if self.order is not None:
            raise ModelError("weights in order of activation (desc_act) cannot be cut by inputs")
        if start % group or stop % group:
            raise ModelError(
                f"weights in groups of {group} cannot be cut at the inputs {start} and {stop}"
            )
        groups = slice(start // group, stop // group)
        packed, scale, zero = (
            tensor.view(self.planes, -1, *tensor.shape[1:])[:, groups].flatten(0, 1)
            for tensor in (self.packed, self.scale, self.zero)
        )
        return replace(self, packed=packed, scale=scale, zero=zero)


QuantisedWeight = ByteWeight | GroupedWeight


def joined(parts: Sequence[QuantisedWeight | Tensor]) -> QuantisedWeight | None:
    """One weight with the outputs of all `parts`, which see the same inputs; None: they differ."""
    first = parts[0]
    if isinstance(first, ByteWeight):
        dtype = first.values.dtype
        alike = [p for p in parts if isinstance(p, ByteWeight) and p.values.dtype == dtype]
        if len(alike) < len(parts):
            return None
        octets = torch.cat([part.values.view(torch.uint8) for part in alike])
        return ByteWeight(octets.view(dtype), torch.cat([part.scale for part in alike]))
    if isinstance(first, GroupedWeight):
        same = [p for p in parts if isinstance(p, GroupedWeight) and _alike(p, first)]
        if len(same) < len(parts):
            return None
        return replace(
            first,
            packed=torch.cat([part.packed for part in same], dim=1),
            scale=torch.cat([part.scale for part in same], dim=1),
            zero=torch.cat([part.zero for part in same], dim=1),
        )
    return None


def _alike(left: GroupedWeight, right: GroupedWeight) -> bool:
    if left.planes != right.planes or left.packed.shape[2] != right.packed.shape[2]:
        return False
    if left.order is None or right.order is None:
        return left.order is right.order
    return torch.equal(left.order, right.order)


def grouped(
    levels: Tensor, scale: Tensor, zero: Tensor, bits: int, order: Tensor | None = None
) -> QuantisedWeight:
    """Weights of four or eight bits, (level - zero) * scale.

    levels [O, I] uint8; scale and zero [J, O]; `order` [I] brings inputs into groups. Raises
    ModelError for groups that the kernels do not take.
    """
    if bits == 8 and len(scale) == 1 and bool((zero == 128).all()):
        return ByteWeight((levels ^ 128).view(torch.int8), scale[0].float().contiguous())
    smaller = group_size(levels.shape[1], len(scale))
    repeats = levels.shape[1] // len(scale) // smaller
    scale, zero = (x.float().repeat_interleave(repeats, dim=0) for x in (scale, zero))
    if order is not None:
        levels = levels[:, order]
    if bits == 4:
        return GroupedWeight(pack(levels, smaller), scale, zero, order)
    return GroupedWeight(
        packed=torch.cat((pack(levels >> 4, smaller), pack(levels & 15, smaller))),
        scale=torch.cat((16 * scale, scale)),
        zero=torch.cat((zero // 16, zero % 16)),
        order=order,
        planes=2,
    )


def group_size(num_in: int, num_groups: int) -> int:
    """Inputs of a group as the kernels take them. Raises ModelError where they take none."""
    group = num_in // num_groups
    size = min(group & -group, LARGEST_GROUP)  # the largest power of two in it
    if group * num_groups != num_in or size < LEAST_GROUP:
        raise ModelError(
            f"{num_in} inputs in {num_groups} groups are not supported; "
            f"supported: groups of a multiple of {LEAST_GROUP}"
        )
    return size
