"""No kernel's address arithmetic ends at 32 bits: tensors of more than 2^31 elements, and of each
launch the one program that reaches furthest.

Only what that program touches takes memory. Rows and slots at strides beyond 2^31 stand with the
tests of their kernels.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.attention_triton import attention
from gpu_worker.kernels.block_copy_triton import block_copy
from gpu_worker.kernels.fixed_matmul import fixed_matmul_reference
from gpu_worker.kernels.fixed_matmul_triton import fixed_matmul
from gpu_worker.kernels.gather_norm_triton import embed_norm, last_norm
from gpu_worker.kernels.gelu_mul_triton import gelu_mul
from gpu_worker.kernels.int4_matmul import int4_matmul_reference
from gpu_worker.kernels.int4_matmul_triton import int4_matmul
from gpu_worker.kernels.rms_norm_triton import rms_norm
from gpu_worker.kernels.rotary_kv_write_triton import rotary_kv_write
from gpu_worker.kernels.silu_mul_triton import silu_mul
from gpu_worker.kernels.small_matmul import small_matmul_reference
from gpu_worker.kernels.small_matmul_triton import small_matmul
from gpu_worker.kernels.widen_triton import widen_bytes, widen_int4
from tests.gpu_worker.poison import HUGE, assert_close, one_program, untouched

WIDTH = 16384
BF16 = torch.bfloat16


def far_rows(width: int, dtype: torch.dtype = BF16) -> Tensor:
    """[., width] with more than 2^31 elements, of which the last row is drawn."""
    rows = untouched((HUGE // width + 2) * width, dtype).view(-1, width)
    rows[-1] = torch.randn(width).to(dtype)
    return rows


def test_norms() -> None:
    x, residual, weight = far_rows(WIDTH), far_rows(WIDTH), torch.randn(WIDTH).to(BF16)
    near = rms_norm(x[-1:], weight, 1e-5, residual[-1:])
    with one_program():
        for far, expected in zip(rms_norm(x, weight, 1e-5, residual), near, strict=True):
            assert torch.equal(far[-1:], expected)
        last = torch.full((len(x),), len(x) - 1)
        assert torch.equal(last_norm(x, residual, last, weight, 1e-5)[-1:], near[0])
        tokens = torch.full((len(x),), 1, dtype=torch.int32)
        for far in embed_norm(tokens, torch.ones(2, WIDTH).to(BF16), weight, 0.0):
            assert far[-1].isfinite().all()


def tanh_gelu_mul(gate_up: Tensor) -> Tensor:
    return gelu_mul(gate_up, tanh=True)


@pytest.mark.parametrize("kernel", [silu_mul, tanh_gelu_mul], ids=["silu", "gelu"])
def test_gated_activations(kernel: Callable[[Tensor], Tensor]) -> None:
    gate_up = far_rows(2 * WIDTH)
    near = kernel(gate_up[-1:])
    with one_program():
        assert torch.equal(kernel(gate_up)[-1, -100:], near[0, -100:])


def test_rotated_queries() -> None:
    """More than 2^31 numbers of queries, and so of q, k and v."""
    heads, size = 62, 256
    qkv = far_rows((heads + 2) * size)
    rows = len(qkv)
    cos_sin = torch.cat((torch.zeros(1, size // 2), torch.ones(1, size // 2)), dim=1)
    caches = torch.zeros(2, 1, 1, 16, size).to(BF16)
    step = (torch.zeros(rows, dtype=torch.int32), None, None, 1e-6, *caches)
    with one_program(-1, 0):
        q = rotary_kv_write(qkv, cos_sin, *step, torch.full((rows,), -1))
    half = size // 2
    assert torch.equal(q[-1, 0, half:], qkv[-1, :half])
    assert torch.equal(q[-1, 0, :half], -qkv[-1, half:size])


def test_attention() -> None:
    """Decoding rows of more than 2^31 numbers; the program of the last row is the first."""
    q = far_rows(64 * 256)
    rows = len(q)
    caches = torch.randn(2, 2, 1, 16, 256).to(BF16)
    tables, lengths = torch.ones(rows, 1).int(), torch.full((rows,), 9).int()
    starts, q = torch.arange(rows + 1).int(), q.view(rows, 64, 256)
    near = attention(q[-1:], *caches, tables[-1:], starts[:2], lengths[-1:], 0.1)
    with one_program(0, 0):
        far = attention(q, *caches, tables, starts, lengths, 0.1)
    assert torch.equal(far[-1:], near)


def test_blocks() -> None:
    """Pools whose blocks of the last layer lie behind 2^31 elements."""
    source, target = (untouched(HUGE + (1 << 12), BF16).view(2, -1, 1, 16, 64) for _ in range(2))
    last = source.shape[1] - 1
    source[1, last - 1], source[0, last - 1] = torch.randn(2, 1, 16, 64).to(BF16)
    block_copy(source, target, torch.tensor([[last - 1, last]]))
    assert torch.equal(target[:, last], source[:, last - 1])


@pytest.mark.parametrize("rows", [1, 3])
def test_weights(rows: int) -> None:
    """More than 2^31 of them, in many outputs."""
    x, weight = torch.randn(rows, 64), far_rows(64, torch.float32)
    with one_program():
        for linear in (fixed_matmul, small_matmul):
            assert_close(linear(x, weight)[:, -1:], fixed_matmul_reference(x, weight[-1:]))


def test_weights_of_eight_bits() -> None:
    x, scale = torch.randn(1, 64), untouched(HUGE // 64 + 2, torch.float32)
    weight = untouched(len(scale) * 64, torch.int8).view(-1, 64)
    weight[-1], scale[-1] = torch.randint(-128, 128, (64,)), 0.1
    with one_program():
        far = small_matmul(x, weight, scale)[:, -1:]
        wide = widen_bytes(weight, scale, BF16)
    assert_close(far, small_matmul_reference(x, weight[-1:], scale[-1:]), within=1e-3)
    assert_close(wide[-1], (weight[-1] * scale[-1]).to(BF16))


def test_weights_of_four_bits() -> None:
    num_out = HUGE // 64 + 1
    packed = untouched(num_out * 64, torch.uint8).view(1, num_out, 64)
    scale, zero = untouched(2 * num_out, torch.float32).view(2, 1, num_out)
    packed[0, -1], scale[0, -1], zero[0, -1] = torch.randint(0, 256, (64,)), 0.1, 8.0
    x, end = torch.randn(1, 128), slice(num_out - 1, num_out)
    one = (packed[:, end], scale[:, end], zero[:, end])
    with one_program():
        far = int4_matmul(x, packed, scale, zero)[:, -1:]
        wide = widen_int4(packed, scale, zero, 1, torch.float32)
    assert_close(far, int4_matmul_reference(x, *one), within=1e-3)
    levels = torch.cat((packed[0, -1] & 15, packed[0, -1] >> 4)).float()
    assert_close(wide[-1], (levels - 8.0) * 0.1)


def test_outputs_of_a_linear_layer() -> None:
    num_out = 1 << 20
    x, weight = torch.randn(HUGE // num_out + 4, 16), torch.randn(num_out, 16)
    with one_program():
        far = fixed_matmul(x, weight)
    assert far.numel() > 1 << 31
    assert_close(far[-1:, -5:], fixed_matmul_reference(x[-1:], weight[-5:]))
