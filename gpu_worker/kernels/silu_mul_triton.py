"""The gated activation in Triton; `silu_mul.py` says what it computes.

Axes: N tokens of the step, F feed-forward width.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # 16 bytes of bfloat16 for each of 256 threads, the most that 4 warps have


def silu_mul(gate_up: Tensor) -> Tensor:
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.is_contiguous()
    out = gate_up.new_empty(num_rows, width)
    if num_rows:
        grid = (num_rows, triton.cdiv(width, BLOCK))
        _silu_mul_kernel[grid](gate_up, out, width, BLOCK=BLOCK)
    return out


@triton.jit
def _silu_mul_kernel(gate_up_ptr, out_ptr, width, BLOCK: tl.constexpr):
    """One program for BLOCK outputs of one row."""
    n = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    inside = f < width
    gate = tl.load(gate_up_ptr + n * 2 * width + f, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + n * 2 * width + width + f, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + n * width + f, gate * tl.sigmoid(gate) * up, mask=inside)
