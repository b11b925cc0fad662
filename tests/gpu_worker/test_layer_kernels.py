"""The kernels between the matrix products, interpreted, against their references."""

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.fp8 import to_fp8_reference
from gpu_worker.kernels.gather_norm import embed_norm_reference, last_norm_reference
from gpu_worker.kernels.gather_norm_triton import embed_norm, last_norm
from gpu_worker.kernels.gelu_mul import gelu_mul_reference
from gpu_worker.kernels.gelu_mul_triton import gelu_mul
from gpu_worker.kernels.rms_norm import rms_norm_reference
from gpu_worker.kernels.rms_norm_triton import rms_norm
from gpu_worker.kernels.rotary_kv_write import rotary_kv_write_reference
from gpu_worker.kernels.rotary_kv_write_triton import rotary_kv_write
from gpu_worker.kernels.silu_mul import silu_mul_reference
from gpu_worker.kernels.silu_mul_triton import silu_mul
from tests.gpu_worker.poison import HUGE, assert_close, far_apart, fenced, untouched

pytestmark = pytest.mark.usefixtures("poisoned")

DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.bfloat16, id="bf16"),
    pytest.param(torch.float16, id="fp16"),
]
BYTES = torch.float8_e4m3fn


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 7), (5, 576), (2, 1025)])
def test_rms_norm_reads_and_writes_its_rows_only(
    rows: int, width: int, has_residual: bool, dtype: torch.dtype
) -> None:
    x, residual = (fenced(torch.randn(rows, width).to(dtype)) for _ in range(2))
    weight = fenced(torch.randn(width).to(dtype))
    given = residual if has_residual else None
    actual = rms_norm(x, weight, 1e-5, given)
    for one, other in zip(actual, rms_norm_reference(x, weight, 1e-5, given), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [7, 576])
def test_embed_norm(width: int, dtype: torch.dtype) -> None:
    embedding, weight = (fenced(torch.randn(*shape).to(dtype)) for shape in ((9, width), (width,)))
    tokens = fenced(torch.tensor([8, 0, 3, 3], dtype=torch.int32))
    actual = embed_norm(tokens, embedding, weight, 1e-5)
    expected = embed_norm_reference(tokens, embedding, weight, 1e-5)
    assert_close(actual[0], expected[0])
    assert torch.equal(actual[1], embedding[tokens.long()])


def test_a_token_outside_of_the_vocabulary_is_nan() -> None:
    embedding, tokens = torch.randn(4, 8), torch.tensor([-1, 2, 4], dtype=torch.int32)
    for function in (embed_norm, embed_norm_reference):
        for out in function(tokens, embedding, torch.ones(8), 1e-5):
            assert out.isnan().all(1).tolist() == [True, False, True]
            assert not out[1].isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [7, 576])
def test_last_norm(width: int, dtype: torch.dtype) -> None:
    x, residual = (fenced(torch.randn(6, width).to(dtype)) for _ in range(2))
    weight, last = fenced(torch.randn(width).to(dtype)), fenced(torch.tensor([5, 0, 2]))
    actual = last_norm(x, residual, last, weight, 1e-5)
    assert_close(actual, last_norm_reference(x, residual, last, weight, 1e-5))


def test_the_embedding_may_have_more_elements_than_32_bits_count() -> None:
    width = 16384
    embedding = untouched((HUGE // width + 2) * width, torch.bfloat16).view(-1, width)
    embedding[-1] = torch.randn(width)
    tokens = torch.tensor([len(embedding) - 1], dtype=torch.int32)
    _, rows = embed_norm(tokens, embedding, torch.ones(width).bfloat16(), 1e-5)
    assert torch.equal(rows[0], embedding[-1])


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # the interpreter's numpy
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 1025)])
def test_gelu_mul(rows: int, width: int, tanh: bool, dtype: torch.dtype) -> None:
    gate_up = torch.randn(rows, 2 * width).to(dtype) * 5
    gate_up[0, 0] = -60.0
    gate_up = fenced(gate_up)
    assert_close(gelu_mul(gate_up, tanh), gelu_mul_reference(gate_up, tanh))


def test_the_two_gelus_differ() -> None:
    gate_up = torch.tensor([[-2.0, 1.0]])
    assert gelu_mul(gate_up, True).item() == pytest.approx(-0.045402, abs=1e-6)
    assert gelu_mul(gate_up, False).item() == pytest.approx(-0.045500, abs=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 1025)])
def test_silu_mul_reads_and_writes_its_rows_only(rows: int, width: int, dtype: torch.dtype) -> None:
    gate_up = fenced(torch.randn(rows, 2 * width).to(dtype))
    assert_close(silu_mul(gate_up), silu_mul_reference(gate_up))


# --- Rotary embedding and the write into the cache ------------------------------------------------


def rotary_inputs(
    heads: int, groups: int, size: int, block_size: int, rotated: int, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], Tensor]:
    """(qkv, cos_sin, positions), and slots of which one is not written; 4 tokens, 3 blocks."""
    angles = torch.randn(50, rotated // 2)
    return (
        fenced(torch.randn(4, (heads + 2 * groups) * size).to(dtype)),
        fenced(torch.cat((angles.cos(), angles.sin()), dim=1)),
        fenced(torch.tensor([49, 0, 7, 7], dtype=torch.int32)),
    ), torch.tensor([3 * block_size - 1, 0, -1, block_size])


def caches_of(groups: int, size: int, block_size: int, dtype: torch.dtype) -> Tensor:
    """K and V of 3 blocks, all NaN."""
    return torch.full((2, 3, groups, block_size, size), torch.nan).to(dtype)


HEADS = [
    pytest.param(9, 3, 64, 64, id="9-3-64"),
    pytest.param(4, 1, 80, 80, id="4-1-80"),
    pytest.param(2, 2, 96, 96, id="2-2-96"),
    pytest.param(20, 10, 128, 128, id="20-10-128"),
    pytest.param(2, 1, 256, 256, id="2-1-256"),
    pytest.param(3, 1, 80, 32, id="part-of-80"),
    pytest.param(2, 1, 7, 6, id="odd"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize(("heads", "groups", "size", "rotated"), HEADS)
def test_rotary_kv_write_of_any_head(
    heads: int,
    groups: int,
    size: int,
    rotated: int,
    is_fp8: bool,
    has_norms: bool,
    dtype: torch.dtype,
) -> None:
    block_size = 17
    inputs, slots = rotary_inputs(heads, groups, size, block_size, rotated, dtype)
    norms = torch.randn(2, size).to(dtype) if has_norms else (None, None)
    cached = BYTES if is_fp8 else dtype
    ours, theirs = (caches_of(groups, size, block_size, cached) for _ in range(2))
    scales = torch.rand(2, groups) + 0.1 if is_fp8 else ()
    actual = rotary_kv_write(*inputs, *norms, 1e-6, *ours, slots, *scales)
    expected = rotary_kv_write_reference(*inputs, *norms, 1e-6, *theirs, slots, *scales)
    assert_close(actual, expected)
    assert ours.float().isnan().sum() == theirs.float().isnan().sum() > 0
    # One step of three bits of mantissa, where the values before rounding differ in the last bit.
    ours, theirs = (cache.float().nan_to_num(999.0) for cache in (ours, theirs))
    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=0.13 if is_fp8 else 2e-2)
    assert (ours != theirs).float().mean() < (0.02 if is_fp8 else 1.0)


@pytest.mark.parametrize("block_size", [16, 24, 32, 64])
def test_rotary_kv_write_fills_the_slots_of_any_block_size(block_size: int) -> None:
    inputs, slots = rotary_inputs(4, 2, 16, block_size, 16, torch.float32)
    k_cache, v_cache = caches_of(2, 16, block_size, torch.float32)
    rotary_kv_write(*inputs, None, None, 1e-6, k_cache, v_cache, slots)
    values = inputs[0].view(4, 8, 16)[:, 6:]
    for token, (block, offset) in {0: (2, block_size - 1), 1: (0, 0), 3: (1, 0)}.items():
        assert torch.equal(v_cache[block, :, offset], values[token])
        assert torch.equal(k_cache[block, :, offset].norm(dim=1) > 0, torch.ones(2).bool())
    assert (~v_cache.isnan()).sum() == 3 * values[0].numel()


def test_rows_and_slots_may_be_further_apart_than_32_bits_count() -> None:
    inputs, _ = rotary_inputs(1, 1, 64, 16, 64, torch.bfloat16)
    qkv, cos_sin, positions = inputs
    far = far_apart(qkv[:2], HUGE)
    blocks = HUGE // (16 * 64)
    k_cache, v_cache = untouched(2 * blocks * 16 * 64, torch.bfloat16).view(2, blocks, 1, 16, 64)
    slots = torch.tensor([blocks * 16 - 1, 5])
    q = rotary_kv_write(far, cos_sin, positions[:2], None, None, 1e-6, k_cache, v_cache, slots)
    assert torch.equal(v_cache[-1, 0, 15], qkv[0, 128:])
    assert torch.equal(v_cache[0, 0, 5], qkv[1, 128:])
    near = caches_of(1, 64, 16, torch.bfloat16)
    args = (qkv[:2].contiguous(), cos_sin, positions[:2])
    assert torch.equal(q, rotary_kv_write(*args, None, None, 1e-6, *near, torch.tensor([0, 1])))


@pytest.mark.filterwarnings("ignore:invalid value")  # the keys: 0 * inf
def test_every_number_of_eight_bits_and_what_lies_between_is_rounded_as_torch_does() -> None:
    codes = torch.arange(127, dtype=torch.uint8).view(BYTES).float()
    middles = (codes[1:] + codes[:-1]) / 2
    around = torch.cat(
        (codes, middles, middles.nextafter(codes[1:]), middles.nextafter(codes[:-1]))
    )
    special = torch.tensor([448.1, 464.0, 1e9, torch.inf, torch.nan, 1e-30, 1e-45])
    numbers = torch.cat((around, special))
    numbers = torch.cat((numbers, -numbers))
    numbers = torch.nn.functional.pad(numbers, (0, -len(numbers) % 16)).view(-1, 16)
    qkv = numbers.repeat(1, 3).contiguous()  # one head each of q, k, v
    k_cache, v_cache = torch.zeros(2, len(numbers), 1, 1, 16).to(BYTES)
    rotary_kv_write(
        qkv,
        torch.cat((torch.ones(1, 8), torch.zeros(1, 8)), dim=1),
        torch.zeros(len(numbers), dtype=torch.int32),
        None,
        None,
        1e-6,
        k_cache,
        v_cache,
        torch.arange(len(numbers)),
    )
    expected = to_fp8_reference(numbers).view(torch.uint8)
    assert torch.equal(v_cache.view(torch.uint8)[:, 0, 0], expected)


def test_a_row_is_the_same_bits_in_every_batch() -> None:
    x, residual = torch.randn(2, 6, 576).bfloat16()
    weight = torch.randn(576).bfloat16()
    together = rms_norm(x, weight, 1e-5, residual)[0]
    last = last_norm(x, residual, torch.tensor([4, 1]), weight, 1e-5)
    for row in range(6):
        alone = rms_norm(x[row : row + 1], weight, 1e-5, residual[row : row + 1])[0]
        assert torch.equal(alone[0], together[row])
    assert torch.equal(last, together[[4, 1]])
