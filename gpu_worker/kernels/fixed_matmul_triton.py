"""A linear layer in one order of sums in Triton; `fixed_matmul.py` says what it computes.

Axes: N rows, I inputs, O outputs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

GROUP = tl.constexpr(32)  # tiles of rows that take turns at one tile of weights: x fits the cache


@dataclass(frozen=True)
class Tile:
    """What one program computes, and how much of it is under way."""

    rows: int
    outputs: int
    inputs: int  # at a time
    warps: int
    stages: int


def fixed_matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    (num_rows, num_in), num_out = x.shape, len(weight)
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    assert weight.shape[1] == num_in
    assert weight.dtype == x.dtype
    out = torch.empty(num_rows, num_out, dtype=x.dtype, device=x.device)
    if num_rows:
        tile = tile_of(num_out, x.dtype, bool(torch.version.hip))
        tiles = triton.cdiv(num_rows, tile.rows) * triton.cdiv(num_out, tile.outputs)
        _fixed_matmul_kernel[(tiles,)](
            x,
            x.stride(0),
            weight,
            bias,
            out,
            num_rows,
            I=num_in,
            O=num_out,
            ROWS=tile.rows,
            OUTPUTS=tile.outputs,
            INPUTS=tile.inputs,
            WIDE=triton.knobs.runtime.interpret,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return out


def tile_of(num_out: int, dtype: torch.dtype, is_hip: bool) -> Tile:
    """By the layer's shape alone. 64 rows are the least that a warp group's products take.

    A decoding step reads weights: narrow layers are cut finely enough to occupy processors, and
    each program has 48 KB of weights under way. Wide layers have programs enough for larger tiles,
    which read x and weights less often for a prompt.
    """
    is_wide = num_out >= 128 * 132
    if dtype == torch.float32:  # no tensor cores: products are exact in float32
        return Tile(32, 64, 32, 4, 2)
    if is_hip:
        return Tile(64, 128, 64, 8, 2) if is_wide else Tile(64, 64, 64, 4, 2)
    return Tile(128, 128, 64, 8, 3) if is_wide else Tile(64, 64, 128, 4, 4)


@triton.jit(do_not_specialize=["num_rows"])  # the same code for every batch
def _fixed_matmul_kernel(
    x_ptr,
    x_stride,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program for ROWS rows and OUTPUTS outputs, over all inputs.

    WIDE is for the interpreter, which multiplies bf16 as integers.
    """
    row_tile, out_tile = _tile_of_program(tl.cdiv(num_rows, ROWS), tl.cdiv(O, OUTPUTS))
    n = row_tile * ROWS + tl.arange(0, ROWS)  # [ROWS]
    o = out_tile * OUTPUTS + tl.arange(0, OUTPUTS)  # [OUTPUTS]
    x_rows = x_ptr + n.to(tl.int64)[:, None] * x_stride
    weight_rows = weight_ptr + o.to(tl.int64)[:, None] * I
    is_row, is_out = (n < num_rows)[:, None], (o < O)[:, None]
    acc = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for first in range(0, I, INPUTS):
        i = first + tl.arange(0, INPUTS)[None, :]  # [1, INPUTS]
        x = tl.load(x_rows + i, mask=is_row & (i < I), other=0.0)
        weight = tl.load(weight_rows + i, mask=is_out & (i < I), other=0.0)  # [OUTPUTS, INPUTS]
        if WIDE:
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + o, mask=o < O, other=0.0).to(tl.float32)[None, :]
    out = n.to(tl.int64)[:, None] * O + o[None, :]
    tl.store(out_ptr + out, acc, mask=is_row & (o < O)[None, :])


@triton.jit
def _tile_of_program(row_tiles, out_tiles):
    """(tile of rows, tile of outputs): all outputs of GROUP tiles of rows before the next ones."""
    place = tl.program_id(0)
    first = place // (GROUP * out_tiles) * GROUP
    in_group = place % (GROUP * out_tiles)
    count = tl.minimum(row_tiles - first, GROUP)
    return first + in_group % count, in_group // count
