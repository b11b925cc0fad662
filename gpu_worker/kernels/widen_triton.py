"""Widened weights in Triton; `widen.py` says what they are.

Axes: I inputs, O outputs, Q inputs of a group, J groups, P planes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.fp8_triton import from_fp8

OUTPUTS = 64  # of a program: 4 KiB of codes at 128 inputs a group, 16 bytes for each of 256 threads
BLOCK = 4096  # bytes of a program


def widen_int4(
    packed: Tensor, scale: Tensor, zero: Tensor, planes: int, dtype: torch.dtype
) -> Tensor:
    num_groups, num_out, half = len(packed) // planes, *packed.shape[1:]
    assert half == triton.next_power_of_2(half)
    assert all(t.is_contiguous() for t in (packed, scale, zero))
    out = torch.empty(num_out, num_groups * 2 * half, dtype=dtype, device=packed.device)
    grid = (num_groups, triton.cdiv(num_out, OUTPUTS))
    sizes = {"J": num_groups, "O": num_out, "HALF": half, "P": planes, "OUTPUTS": OUTPUTS}
    _widen_int4_kernel[grid](packed, scale, zero, out, **sizes)
    return out


def widen_bytes(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    num_out, num_in = values.shape
    assert values.is_contiguous()
    assert scale.is_contiguous()
    out = torch.empty(num_out, num_in, dtype=dtype, device=values.device)
    is_fp8 = values.dtype == torch.float8_e4m3fn
    codes = values.view(torch.uint8) if is_fp8 else values
    grid = (triton.cdiv(values.numel(), BLOCK),)
    sizes = {"O": num_out, "I": num_in, "IS_FP8": is_fp8, "BLOCK": BLOCK}
    _widen_bytes_kernel[grid](codes, scale, out, **sizes)
    return out


@triton.jit
def _widen_int4_kernel(
    packed_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    J: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    HALF: tl.constexpr,
    P: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """One program for one group of OUTPUTS outputs."""
    j = tl.program_id(0)
    o = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)  # [OUTPUTS]
    q = tl.arange(0, HALF)[None, :]
    is_out = o < O
    low = tl.zeros((OUTPUTS, HALF), tl.float32)
    high = tl.zeros((OUTPUTS, HALF), tl.float32)
    for plane in tl.static_range(P):
        group = (plane * J + j).to(tl.int64) * O + o  # [OUTPUTS]
        codes = tl.load(packed_ptr + group[:, None] * HALF + q, mask=is_out[:, None], other=0)
        scale = tl.load(scale_ptr + group, mask=is_out, other=0.0)[:, None]
        zero = tl.load(zero_ptr + group, mask=is_out, other=0.0)[:, None]
        low += ((codes & 15).to(tl.float32) - zero) * scale
        high += ((codes >> 4).to(tl.float32) - zero) * scale
    out = out_ptr + o.to(tl.int64)[:, None] * (J * HALF * 2) + j * HALF * 2 + q
    tl.store(out, low, mask=is_out[:, None])
    tl.store(out + HALF, high, mask=is_out[:, None])


@triton.jit
def _widen_bytes_kernel(
    codes_ptr,
    scale_ptr,
    out_ptr,
    O: tl.constexpr,  # noqa: E741
    I: tl.constexpr,  # noqa: E741
    IS_FP8: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program for BLOCK weights, of one output after the other."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_weight = place < O * I
    codes = tl.load(codes_ptr + place, mask=is_weight, other=0)
    values = from_fp8(codes) if IS_FP8 else codes.to(tl.float32)
    scale = tl.load(scale_ptr + place // I, mask=is_weight, other=0.0)
    tl.store(out_ptr + place, values * scale, mask=is_weight)
