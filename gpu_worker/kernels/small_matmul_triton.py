"""A linear layer for few rows in Triton; `small_matmul.py` says what it computes.

Axes: N rows, I inputs, O outputs, P parts into which the inputs are cut.

How a layer is cut depends on its shape alone. With `deterministic` the tile of rows does not
depend on the batch either, so that a row is the same bits in any.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.fp8_triton import from_fp8
from gpu_worker.kernels.small_matmul import MAX_ROWS

OUTPUTS = 32  # of a program
SUMMED = 1024  # outputs of a program that sums parts
PROCESSORS = 132  # of a H200; on others the parts are a little too many or too few
KINDS = {torch.int8: 1, torch.float8_e4m3fn: 2}
PLAIN = tl.constexpr(0)
INT8 = tl.constexpr(1)


def small_matmul(
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    deterministic: bool = False,
) -> Tensor:
    (num_rows, num_in), num_out = x.shape, len(weight)
    kind = KINDS.get(weight.dtype, 0)
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    assert (scale is None) == (kind == 0)
    assert kind or weight.dtype == x.dtype
    parts = parts_of(num_out, num_in, OUTPUTS)
    out = torch.empty(num_rows, num_out, dtype=x.dtype, device=x.device)
    sums = out
    if parts > 1:
        sums = torch.empty(parts, num_rows, num_out, dtype=torch.float32, device=x.device)
    if num_rows:
        rows = rows_of(num_rows, deterministic)
        grid = (triton.cdiv(num_rows, rows), triton.cdiv(num_out, OUTPUTS), parts)
        _small_matmul_kernel[grid](
            x,
            x.stride(0),
            weight.view(torch.uint8) if kind else weight,
            scale,
            bias,
            sums,
            num_rows,
            I=num_in,
            O=num_out,
            P=parts,
            KIND=kind,
            ROWS=rows,
            INPUTS=inputs_of(kind, rows),
            OUTPUTS=OUTPUTS,
            WIDE=triton.knobs.runtime.interpret,
            num_stages=stages_of(rows),
        )
        if parts > 1:
            sum_parts(sums, scale, bias, out)
    return out


def inputs_of(kind: int, rows: int) -> int:
    """Inputs that a program takes at a time: 256 bytes of a weight row where x is small."""
    return 256 if kind and rows <= 16 else 128


def rows_of(num_rows: int, deterministic: bool) -> int:
    """Rows of a program: the least that tensor cores take, or all, if those are not too many."""
    if deterministic:
        return 16
    return min(MAX_ROWS, max(16, int(triton.next_power_of_2(num_rows))))


def parts_of(num_out: int, num_in: int, outputs: int) -> int:
    """Into how many parts the inputs are cut, so that no processor is idle; a part is not short."""
    return max(1, min(PROCESSORS // int(triton.cdiv(num_out, outputs)), num_in // 2048))


def stages_of(rows: int) -> int:
    """Tiles in flight, and one in use: two programs of a processor have room for them."""
    if torch.version.hip:
        return 2
    return 5 if rows <= 16 else 4


def sum_parts(sums: Tensor, scale: Tensor | None, bias: Tensor | None, out: Tensor) -> None:
    """Sums [P, N, O] of parts, one after the other, scaled and with the bias into out [N, O]."""
    parts, num_rows, num_out = sums.shape
    _sum_parts_kernel[(num_rows, triton.cdiv(num_out, SUMMED))](
        sums, scale, bias, out, num_rows, O=num_out, P=parts, BLOCK=SUMMED
    )


@triton.jit
def _small_matmul_kernel(
    x_ptr,
    x_stride,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    sums_ptr,
    num_rows,
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    P: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program for ROWS rows and OUTPUTS outputs over one part of the inputs.

    WIDE is for the interpreter, which multiplies bf16 as integers.
    """
    STEPS: tl.constexpr = ((I + INPUTS - 1) // INPUTS + P - 1) // P
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    o = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)  # [OUTPUTS]
    first = tl.program_id(2) * STEPS * INPUTS
    x_rows = x_ptr + n.to(tl.int64)[:, None] * x_stride
    weight_rows = weight_ptr + o.to(tl.int64)[:, None] * I
    is_row, is_out = (n < num_rows)[:, None], (o < O)[:, None]
    acc = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for step in range(STEPS):
        i = first + step * INPUTS + tl.arange(0, INPUTS)[None, :]  # [1, INPUTS]
        x = tl.load(x_rows + i, mask=is_row & (i < I), other=0.0)
        weight = tl.load(weight_rows + i, mask=is_out & (i < I), other=0)  # [OUTPUTS, INPUTS]
        if KIND == INT8:
            # As the last bits of 2^23: converting an integer would take eight times as long.
            bits = (weight.to(tl.int32) ^ 0x80) | 0x4B000000
            weight = (bits.to(tl.float32, bitcast=True) - 8388736.0).to(x.dtype)
        elif KIND != PLAIN:
            weight = from_fp8(weight).to(x.dtype)
        if WIDE:
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
    if P == 1:
        o = o[None, :]
        if scale_ptr is not None:
            acc *= tl.load(scale_ptr + o, mask=o < O, other=0.0)
        if bias_ptr is not None:
            acc += tl.load(bias_ptr + o, mask=o < O, other=0.0).to(tl.float32)
    part = tl.program_id(2).to(tl.int64) * num_rows
    out = (part + n[:, None]) * O + tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)[None, :]
    tl.store(sums_ptr + out, acc, mask=is_row & tl.trans(is_out))


@triton.jit
def _sum_parts_kernel(
    sums_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    O: tl.constexpr,  # noqa: E741
    P: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program for BLOCK outputs of one row."""
    n = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(P):
        total += tl.load(sums_ptr + (part * num_rows + n) * O + o, mask=o < O, other=0.0)
    if scale_ptr is not None:
        total *= tl.load(scale_ptr + o, mask=o < O, other=0.0)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + o, mask=o < O, other=0.0).to(tl.float32)
    tl.store(out_ptr + n * O + o, total, mask=o < O)
