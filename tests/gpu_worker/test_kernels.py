"""References against naive arithmetic, and Triton kernels, interpreted, against the references."""

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.attention import attention_reference
from gpu_worker.kernels.attention_triton import attention
from gpu_worker.kernels.block_copy import block_copy_reference
from gpu_worker.kernels.block_copy_triton import block_copy
from gpu_worker.kernels.rms_norm import rms_norm_reference
from gpu_worker.kernels.rms_norm_triton import rms_norm
from gpu_worker.kernels.rotary_kv_write import rotary_kv_write_reference
from gpu_worker.kernels.rotary_kv_write_triton import rotary_kv_write
from gpu_worker.kernels.silu_mul import silu_mul_reference
from gpu_worker.kernels.silu_mul_triton import silu_mul
from tests.gpu_worker.kernel_cases import Shape, make_step, naive_attention

DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.bfloat16, id="bf16"),
]
SHAPES = [
    pytest.param(Shape(9, 3, 64, 16), id="H9-G3-D64-B16"),
    pytest.param(Shape(4, 4, 128, 8), id="H4-G4-D128-B8"),
    pytest.param(Shape(8, 1, 16, 32), id="H8-G1-D16-B32"),
]


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Within rounding of the type. Triton's interpreter truncates to bf16: 2^-7 and a little."""
    tolerance = 2e-5 if actual.dtype == torch.float32 else 1e-2
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, atol=2 * tolerance, rtol=2 * tolerance)


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_reference_is_attention(shape: Shape, window: int) -> None:
    step = make_step([(1, 1), (3, 33), (17, 17), (1, 20)], shape, torch.float32)
    actual = attention_reference(*step.tensors, 0.3, window)
    assert_close(actual, naive_attention(step, 0.3, window).float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "sequences",
    [
        pytest.param([(1, n) for n in (1, 15, 16, 17, 63, 65)], id="decode"),
        pytest.param([(1, 40), (11, 33), (1, 1), (7, 7), (2, 64)], id="mixed"),
    ],
)
def test_attention(
    shape: Shape, sequences: list[tuple[int, int]], window: int, dtype: torch.dtype
) -> None:
    step = make_step(sequences, shape, dtype)
    scale = shape.head_size**-0.5
    expected = attention_reference(*step.tensors, scale, window)
    assert_close(attention(*step.tensors, scale, window), expected)


def test_attention_of_a_long_chunk_among_decoding_rows() -> None:
    sequences = [(1, 1000), (300, 300), *[(1, length) for length in range(1, 65, 4)]]
    step = make_step(sequences, Shape(1, 1, 16, 16), torch.float32)
    expected = attention_reference(*step.tensors, 0.25)
    assert_close(attention(*step.tensors, 0.25), expected)


def test_attention_takes_head_and_block_sizes_that_are_no_powers_of_two() -> None:
    step = make_step([(1, 50), (10, 33)], Shape(6, 2, 80, 12), torch.float32)
    assert_close(attention(*step.tensors, 0.1), attention_reference(*step.tensors, 0.1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (17, 576), (3, 40)])
def test_rms_norm(rows: int, width: int, has_residual: bool, dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, rows, width).to(dtype)
    weight = torch.randn(width).to(dtype)
    given = residual if has_residual else None
    normed, total = rms_norm(x, weight, 1e-5, given)
    expected_normed, expected_total = rms_norm_reference(x, weight, 1e-5, given)
    assert_close(normed, expected_normed)
    assert_close(total, expected_total)


def test_rms_norm_reference_is_rms_norm() -> None:
    x, weight = torch.randn(5, 32), torch.randn(32)
    normed, _ = rms_norm_reference(x, weight, 1e-5, None)
    torch.testing.assert_close(normed, torch.nn.functional.rms_norm(x, (32,), weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 5])
def test_rotary_kv_write(rows: int, shape: Shape, has_norms: bool, dtype: torch.dtype) -> None:
    d, num_blocks = shape.head_size, 8
    qkv = torch.randn(rows, (shape.heads + 2 * shape.groups) * d).to(dtype)
    cos_sin = torch.randn(100, d)
    positions = torch.randint(0, 100, (rows,), dtype=torch.int32)
    slots = torch.randperm(num_blocks * shape.block_size)[:rows]
    slots[rows // 2] = -1
    norms = torch.randn(2, d).to(dtype) if has_norms else (None, None)
    caches = [
        torch.full((2, num_blocks, shape.groups, shape.block_size, d), torch.nan, dtype=dtype)
        for _ in range(2)
    ]
    args = (qkv, cos_sin, positions, *norms, 1e-6)
    expected = rotary_kv_write_reference(*args, *caches[0], slots)
    assert_close(rotary_kv_write(*args, *caches[1], slots), expected)
    assert torch.equal(caches[1].isnan(), caches[0].isnan())
    assert_close(caches[1].nan_to_num(), caches[0].nan_to_num())


def test_rotary_kv_write_reference_rotates_pairs_and_fills_slots() -> None:
    qkv = torch.randn(2, 3 * 4)  # one query, key and value head of size 4
    angles = torch.tensor([[0.3, 0.7], [1.1, 2.0]])
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    k_cache, v_cache = torch.zeros(2, 3, 1, 2, 4)
    positions = torch.tensor([1, 0], dtype=torch.int32)
    slots = torch.tensor([5, 2])
    q = rotary_kv_write_reference(
        qkv, cos_sin, positions, None, None, 1e-6, k_cache, v_cache, slots
    )
    turned = torch.view_as_complex(torch.stack([qkv[:, 0:2], qkv[:, 2:4]], dim=-1))
    turned = turned * torch.polar(torch.ones(2, 2), angles[positions.long()])
    torch.testing.assert_close(q[:, 0], torch.cat([turned.real, turned.imag], dim=1))
    torch.testing.assert_close(v_cache[2, 0, 1], qkv[0, 8:])
    torch.testing.assert_close(v_cache[1, 0, 0], qkv[1, 8:])
    assert k_cache[0].count_nonzero() == 0


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # the interpreter's numpy
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (17, 1536), (2, 24)])
def test_silu_mul(rows: int, width: int, dtype: torch.dtype) -> None:
    gate_up = torch.randn(rows, 2 * width).to(dtype) * 20
    gate_up[0, 0], gate_up[0, 1] = -120.0, 120.0  # beyond what exp can say in float32
    assert_close(silu_mul(gate_up), silu_mul_reference(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_block_copy(shape: Shape, count: int, dtype: torch.dtype) -> None:
    part = (shape.groups, shape.block_size, shape.head_size)
    source, target = torch.randn(3, 7, *part).to(dtype), torch.randn(3, 9, *part).to(dtype)
    pairs = torch.stack([torch.randperm(7)[:count], torch.randperm(9)[:count]], dim=1)
    expected = target.clone()
    block_copy_reference(source, expected, pairs)
    block_copy(source, target, pairs)
    assert torch.equal(target, expected)


def test_block_copy_takes_blocks_of_any_size_and_transposed_pairs() -> None:
    source, target = torch.randn(2, 3, 3, 5, 70), torch.zeros(2, 4, 3, 5, 70)
    block_copy(source, target, torch.tensor([[3, 1], [0, 2]]).flip(1))
    assert torch.equal(target[:, [3, 0]], source[:, [1, 2]])
    assert target[:, [1, 2]].count_nonzero() == 0


def test_block_copy_reference_moves_blocks_in_all_layers() -> None:
    source, target = torch.randn(2, 3, 1, 2, 4), torch.zeros(2, 4, 1, 2, 4)
    block_copy_reference(source, target, torch.tensor([[2, 0], [0, 3]]))
    for layer in range(2):
        assert torch.equal(target[layer, 0], source[layer, 2])
        assert torch.equal(target[layer, 3], source[layer, 0])
    assert target[:, [1, 2]].count_nonzero() == 0
