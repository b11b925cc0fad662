"""A linear layer with weights of four bits in Triton; `int4_matmul.py` says what it computes.

Axes: N rows, I inputs, O outputs, Q inputs of a group, J groups, P parts that have groups.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.small_matmul_triton import parts_of, rows_of, stages_of, sum_parts

OUTPUTS = 64  # of a program


def int4_matmul(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero: Tensor,
    bias: Tensor | None = None,
    deterministic: bool = False,
) -> Tensor:
    num_rows, num_in = x.shape
    num_groups, num_out, half = packed.shape
    assert num_groups * half * 2 == num_in
    assert half >= 16
    assert half == triton.next_power_of_2(half)
    assert x.stride(1) == 1
    assert all(t.is_contiguous() for t in (packed, scale, zero))
    parts = parts_of(num_out, num_in, OUTPUTS)
    out = torch.empty(num_rows, num_out, dtype=x.dtype, device=x.device)
    sums = out
    if parts > 1:
        sums = torch.empty(parts, num_rows, num_out, dtype=torch.float32, device=x.device)
    if num_rows:
        rows = rows_of(num_rows, deterministic)
        grid = (triton.cdiv(num_rows, rows), triton.cdiv(num_out, OUTPUTS), parts)
        _int4_matmul_kernel[grid](
            x,
            x.stride(0),
            packed,
            scale,
            zero,
            bias,
            sums,
            num_rows,
            J=num_groups,
            O=num_out,
            HALF=half,
            P=parts,
            ROWS=rows,
            OUTPUTS=OUTPUTS,
            WIDE=triton.knobs.runtime.interpret,
            num_stages=stages_of(rows),
        )
        if parts > 1:
            sum_parts(sums, None, bias, out)
    return out


@triton.jit
def _int4_matmul_kernel(
    x_ptr,
    x_stride,
    packed_ptr,
    scale_ptr,
    zero_ptr,
    bias_ptr,
    sums_ptr,
    num_rows,
    J: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    HALF: tl.constexpr,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program for ROWS rows and OUTPUTS outputs over the groups of one part.

    Weights less their zero are whole numbers, exact in bfloat16; the scale comes behind the sum.
    """
    STEPS: tl.constexpr = (J + P - 1) // P
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    o = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)  # [OUTPUTS]
    q = tl.arange(0, HALF)[None, :]
    is_row, is_out = (n < num_rows)[:, None], o < O
    x_rows = x_ptr + n.to(tl.int64)[:, None] * x_stride + q  # [ROWS, Q / 2]
    acc = tl.zeros((ROWS, OUTPUTS), tl.float32)
    first = tl.program_id(2) * STEPS
    for step in range(tl.minimum(STEPS, J - first)):
        j = first + step
        group = j.to(tl.int64) * O + o  # [OUTPUTS]
        codes = tl.load(packed_ptr + group[:, None] * HALF + q, mask=is_out[:, None], other=0)
        scale = tl.load(scale_ptr + group, mask=is_out, other=0.0)
        zero = tl.load(zero_ptr + group, mask=is_out, other=0.0)
        low_x = tl.load(x_rows + j * HALF * 2, mask=is_row, other=0.0)
        high_x = tl.load(x_rows + j * HALF * 2 + HALF, mask=is_row, other=0.0)
        low = _less_zero(codes & 15, zero).to(x_ptr.dtype.element_ty)  # [OUTPUTS, Q / 2]
        high = _less_zero(codes >> 4, zero).to(x_ptr.dtype.element_ty)
        if WIDE:
            low_x, high_x = low_x.to(tl.float32), high_x.to(tl.float32)
            low, high = low.to(tl.float32), high.to(tl.float32)
        total = tl.dot(low_x, tl.trans(low), input_precision="ieee")
        total = tl.dot(high_x, tl.trans(high), total, input_precision="ieee")
        acc += total * scale[None, :]
    o = o[None, :]
    if P == 1 and bias_ptr is not None:
        acc += tl.load(bias_ptr + o, mask=o < O, other=0.0).to(tl.float32)
    part = tl.program_id(2).to(tl.int64) * num_rows
    tl.store(sums_ptr + (part + n[:, None]) * O + o, acc, mask=is_row & (o < O))


@triton.jit
def _less_zero(levels, zero):
    """Whole numbers [OUTPUTS, Q / 2] less zero [OUTPUTS], float32.

    As the last bits of 2^23: converting an integer would take eight times as long.
    """
    bits = levels.to(tl.int32) | 0x4B000000
    return bits.to(tl.float32, bitcast=True) - (8388608.0 + zero)[:, None]
