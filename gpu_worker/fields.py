"""The arrays of one step, in one run of memory: one copy brings all of them to a device.

Axes: N tokens of the step, S sequences, R rows that sample, T width of a block table.
"""

import math
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
A = TypeVar("A")

ALIGNMENT = 64  # bytes: kernels are compiled for pointers that vectors of 16 can be loaded from


@dataclass(frozen=True)
class Shape:
    """What the sizes of all arrays of a step follow from."""

    num_tokens: int  # N
    num_sequences: int  # S
    num_sampling: int  # R
    table_width: int  # T

    @property
    def num_bounds(self) -> int:
        return self.num_sequences + 1


def _of(dtype: str, *axes: str) -> dict[str, Any]:
    """What is to be known of an array; its axes are named as in `Shape`."""
    return {"dtype": dtype, "axes": axes}


@dataclass(frozen=True)
class Fields(Generic[A]):
    """One array for each name: of numpy on the host, of torch on a device.

    First what the layers read, whose places do not depend on R; then what the sampler reads.
    """

    tokens: A = field(
        metadata=_of("int32", "num_tokens")
    )  # PROMISED where the host does not know it
    source: A = field(
        metadata=_of("int32", "num_tokens")
    )  # the row whose promised token it is, or -1
    positions: A = field(metadata=_of("int32", "num_tokens"))
    slot_mapping: A = field(metadata=_of("int64", "num_tokens"))  # -1: of padding, not written
    block_tables: A = field(metadata=_of("int32", "num_sequences", "table_width"))
    cu_seqlens: A = field(metadata=_of("int32", "num_bounds"))
    lengths: A = field(metadata=_of("int32", "num_sequences"))
    last: A = field(metadata=_of("int64", "num_sampling"))
    seed: A = field(metadata=_of("int64", "num_sampling"))  # its 64 bits
    position: A = field(metadata=_of("int64", "num_sampling"))  # in the answer
    temperature: A = field(metadata=_of("float32", "num_sampling"))
    top_k: A = field(metadata=_of("int32", "num_sampling"))
    top_p: A = field(metadata=_of("float32", "num_sampling"))
    min_p: A = field(metadata=_of("float32", "num_sampling"))
    row: A = field(metadata=_of("int32", "num_sampling"))  # each once
    newest: A = field(
        metadata=_of("int32", "num_sampling")
    )  # the row if its newest token is promised, or -1


@dataclass(frozen=True)
class _Place:
    start: int  # in bytes
    stop: int
    size: tuple[int, ...]
    dtype: np.dtype[Any]
    torch_dtype: torch.dtype


def num_bytes(shape: Shape) -> int:
    """How much memory the arrays of a step take."""
    return _layout(shape)[-1].stop


def host_fields(memory: npt.NDArray[np.uint8], shape: Shape) -> Fields[Array]:
    """The arrays as they lie in memory [bytes] of the host."""
    return Fields(*(np.ndarray(p.size, p.dtype, memory, p.start) for p in _layout(shape)))


def device_fields(memory: Tensor, shape: Shape) -> Fields[Tensor]:
    """The arrays as they lie in memory [bytes] uint8 of a device."""
    return Fields(
        *(memory[p.start : p.stop].view(p.torch_dtype).view(p.size) for p in _layout(shape))
    )


def clear(fields: Fields[Array]) -> None:
    """Make them those of a step of padding: tokens that belong to nobody, sequences of nothing."""
    for array in vars(fields).values():
        array.fill(0)
    fields.source.fill(-1)
    fields.slot_mapping.fill(-1)
    fields.row.fill(-1)
    fields.newest.fill(-1)


@lru_cache(maxsize=1024)
def _layout(shape: Shape) -> tuple[_Place, ...]:
    places, start = [], 0
    for each in fields(Fields):
        dtype = np.dtype(each.metadata["dtype"])
        size = tuple(getattr(shape, axis) for axis in each.metadata["axes"])
        stop = start + dtype.itemsize * math.prod(size)
        places.append(_Place(start, stop, size, dtype, getattr(torch, each.metadata["dtype"])))
        start = -(-stop // ALIGNMENT) * ALIGNMENT
    return tuple(places)
