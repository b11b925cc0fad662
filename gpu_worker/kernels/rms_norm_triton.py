"""RMS norm in Triton; `rms_norm.py` says what it computes.

Axes: N tokens of the step, E model width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    num_rows, width = x.shape
    assert x.is_contiguous()
    assert weight.is_contiguous()
    assert residual is None or residual.is_contiguous()
    out = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    if num_rows:
        block = triton.next_power_of_2(width)
        _rms_norm_kernel[(num_rows,)](
            x,
            weight,
            x if residual is None else residual,
            out,
            total,
            eps,
            HAS_RESIDUAL=residual is not None,
            E=width,
            BLOCK=block,
            num_warps=norm_warps(block),
        )
    return out, total


def norm_warps(block: int) -> int:
    """16 values a thread: two loads of 16 bytes of bfloat16 in flight."""
    return max(1, min(16, block // 512))


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    weight_ptr,
    residual_ptr,
    out_ptr,
    total_ptr,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program for one row, which it holds whole: E up to some ten thousand."""
    n = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)  # [BLOCK]
    inside = e < E
    x = tl.load(x_ptr + n * E + e, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + n * E + e, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
        tl.store(total_ptr + n * E + e, x, mask=inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / E + eps)
    weight = tl.load(weight_ptr + e, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + n * E + e, wide * scale * weight, mask=inside)
