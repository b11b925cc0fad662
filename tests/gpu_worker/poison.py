"""Tensors amid NaN, for kernels that read where they should not, and rows far from each other."""

import torch
from torch import Tensor

HUGE = (1 << 31) + (1 << 12)  # elements: an offset of 32 bits does not reach so far


def fenced(values: Tensor, margin: int = 64) -> Tensor:
    """`values` with NaN (of integers: the largest) before and after: what reads there, shows."""
    bad = torch.nan if values.is_floating_point() else torch.iinfo(values.dtype).max
    memory = torch.full((values.numel() + 2 * margin,), bad, dtype=values.dtype)
    inside = memory[margin : margin + values.numel()].view(values.shape)
    inside.copy_(values)
    return inside


def untouched(count: int, dtype: torch.dtype) -> Tensor:
    """[count] memory that nobody wrote, even where all new tensors are poisoned."""
    poisons = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False
    memory = torch.empty(count, dtype=dtype)
    torch.utils.deterministic.fill_uninitialized_memory = poisons
    return memory


def far_apart(values: Tensor, stride: int) -> Tensor:
    """Rows `values` [n, k], `stride` elements apart, with untouched memory between."""
    rows, width = values.shape
    # Memory that nobody touches is not there: only its addresses are used up.
    memory = untouched((rows - 1) * stride + width, values.dtype)
    view = memory.as_strided((rows, width), (stride, 1))
    view.copy_(values)
    return view


def assert_close(actual: Tensor, expected: Tensor, within: float = 0.0) -> None:
    """Within rounding of the type. Triton's interpreter truncates to bf16: 2^-7 and a little."""
    tolerance = within or (4e-5 if actual.dtype == torch.float32 else 2e-2)
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
