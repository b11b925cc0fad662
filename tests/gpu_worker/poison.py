"""Tensors amid NaN, for kernels that read where they should not, and rows far from each other."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from triton.runtime import interpreter

HUGE = (1 << 31) + (1 << 12)  # elements: an offset of 32 bits does not reach so far


def fenced(values: Tensor, margin: int = 64) -> Tensor:
    """`values` with NaN (of integers: the largest) before and after: what reads there, shows."""
    bad = torch.nan if values.is_floating_point() else torch.iinfo(values.dtype).max
    size = values.numel() + 2 * margin
    memory = torch.full((size,), bad, dtype=values.dtype, device=values.device)
    inside = memory[margin : margin + values.numel()].view(values.shape)
    inside.copy_(values)
    return inside


@contextmanager
def unfilled() -> Iterator[None]:
    """New tensors are not poisoned: memory that nobody touches is not there."""
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True


def untouched(count: int, dtype: torch.dtype) -> Tensor:
    """[count] memory that nobody wrote, even where all new tensors are poisoned."""
    with unfilled():
        return torch.empty(count, dtype=dtype)


@contextmanager
def one_program(*place: int) -> Iterator[None]:
    """Of every launch one program runs, by its place in the grid, -1 being the last (the default).

    It sees a grid of full size, in which all others would take hours.
    """
    builder, make = interpreter.interpreter_builder, interpreter.GridExecutor.__init__
    set_sizes, set_place = builder.set_grid_dim, builder.set_grid_idx
    sizes: list[int] = []

    def make_once(self: Any, fn: Any, names: Any, grid: tuple[int, ...], *rest: Any) -> None:
        sizes[:] = (*grid, 1, 1)[:3]
        make(self, fn, names, (1, 1, 1), *rest)

    def set_wanted(*_: int) -> None:
        wanted = zip((*place, -1, -1, -1), sizes, strict=False)
        set_place(*(at % size for at, size in wanted))

    with (
        unfilled(),
        patch.object(interpreter.GridExecutor, "__init__", make_once),
        patch.object(builder, "set_grid_dim", lambda *_: set_sizes(*sizes)),
        patch.object(builder, "set_grid_idx", set_wanted),
    ):
        yield


def far_apart(values: Tensor, stride: int) -> Tensor:
    """Rows `values` [n, k], `stride` elements apart, with untouched memory between."""
    rows, width = values.shape
    memory = untouched((rows - 1) * stride + width, values.dtype)
    view = memory.as_strided((rows, width), (stride, 1))
    view.copy_(values)
    return view


def assert_close(actual: Tensor, expected: Tensor, within: float = 0.0) -> None:
    """Within rounding of the type. Triton's interpreter truncates to bf16: 2^-7 and a little."""
    tolerance = within or (4e-5 if actual.dtype == torch.float32 else 2e-2)
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
