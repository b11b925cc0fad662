"""Attention in Triton, interpreted, against the reference, in memory that is NaN where unused."""

from dataclasses import replace

import pytest
import torch

from gpu_worker.kernels import attention_plan, attention_triton
from gpu_worker.kernels.attention import attention_reference
from gpu_worker.kernels.attention_plan import Schedule
from gpu_worker.kernels.attention_triton import attention
from tests.gpu_worker.attention_cases import (
    FIXED,
    Sequences,
    attend,
    check,
    with_fp8_cache,
)
from tests.gpu_worker.kernel_cases import Shape, make_step, naive_attention

LENGTHS = [1, 15, 16, 17, 63, 64, 65, 1000]
DECODE: Sequences = [(1, length) for length in LENGTHS]
MANY_DECODE: Sequences = DECODE + [(1, 3 * i + 1) for i in range(9)]  # 17 sequences
FEW: Sequences = [(3, 64), (1, 65), (2, 17), (5, 15 + 5), (1, 1)]
MIXED: Sequences = [(1, 40), (300, 300), (1, 1000), (17, 63), (1, 1), (64, 64)]
CHUNKS: Sequences = [(1, 40), (70, 150), (1, 300), (17, 63)]
LONG: Sequences = [(1, 2500), (1, 600), (2, 1300), (1, 1)]  # contexts of several splits
SMALL = Shape(3, 1, 64, 16)


@pytest.mark.parametrize(
    ("sequences", "shape", "dtype", "window"),
    [
        pytest.param([(1, 1)], Shape(9, 3, 64, 16), torch.float32, 0, id="one-token"),
        pytest.param(MANY_DECODE, SMALL, torch.bfloat16, 0, id="decode-D64-B16-bf16"),
        pytest.param(DECODE, Shape(4, 2, 80, 16), torch.float32, 50, id="decode-D80-window"),
        pytest.param(DECODE, Shape(8, 1, 96, 32), torch.float16, 0, id="decode-D96-B32-fp16"),
        pytest.param(DECODE, Shape(4, 1, 128, 64), torch.float32, 0, id="decode-D128-B64"),
        pytest.param(DECODE[:7], Shape(2, 2, 256, 48), torch.bfloat16, 16, id="decode-D256-B48"),
        pytest.param(FEW, Shape(4, 2, 128, 16), torch.float32, 0, id="few-D128"),
        pytest.param(FEW, Shape(20, 1, 96, 16), torch.float32, 7, id="few-R20-window"),
        pytest.param(MIXED, SMALL, torch.float32, 0, id="mixed-D64"),
        pytest.param(
            CHUNKS, Shape(2, 1, 128, 32), torch.bfloat16, 100, id="mixed-D128-window-bf16"
        ),
        pytest.param(CHUNKS, Shape(1, 1, 256, 64), torch.float32, 0, id="mixed-D256-B64"),
        pytest.param(LONG, Shape(4, 2, 64, 16), torch.float32, 0, id="long-D64"),
        pytest.param(LONG[:2], Shape(2, 1, 80, 64), torch.bfloat16, 0, id="long-D80-bf16"),
        pytest.param(LONG, Shape(2, 1, 128, 16), torch.float32, 700, id="long-D128-window"),
    ],
)
@pytest.mark.parametrize("schedule", [None, FIXED], ids=["free", "fixed"])
def test_matches_the_reference(
    sequences: Sequences,
    shape: Shape,
    dtype: torch.dtype,
    window: int,
    schedule: Schedule | None,
) -> None:
    check(make_step(sequences, shape, dtype), schedule, window=window)


@pytest.mark.parametrize("target", ["ampere", "cdna"])
def test_tiles_of_other_targets(target: str) -> None:
    check(make_step([(40, 1100), (1, 65)], SMALL, torch.float32), Schedule(target=target))


@pytest.mark.parametrize("window", [0, 700])
def test_a_chunk_over_a_context_of_several_splits(window: int) -> None:
    """Rows that see one split, rows that see two, and tiles whose rows differ in that."""
    step = make_step([(70, 1050), (1, 9)], Shape(1, 1, 64, 16), torch.float32)
    check(step, FIXED, window=window)


def test_what_lies_before_a_window_is_never_read() -> None:
    """Its blocks may be somebody else's by now."""
    step = make_step([(1, 100), (3, 1310)], Shape(1, 1, 64, 16), torch.float32)
    expected = attend(step, window=20)
    for s, rows in enumerate([1, 3]):
        first = int(step.lengths[s]) - rows - 19
        for cache in (step.k_cache, step.v_cache):
            cache[step.block_tables[s, first // 16], :, : first % 16] = torch.nan
        step.block_tables[s, : first // 16] = -(1 << 30)
    assert torch.equal(attend(step, window=20), expected)


@pytest.mark.parametrize("window", [0, 20])
def test_soft_cap(window: int) -> None:
    step = make_step([*FEW, (1, 1300)], Shape(2, 1, 64, 16), torch.float32)
    check(step, softcap=3.0, window=window, scale=0.5)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp2")  # the interpreter's numpy
def test_soft_cap_of_scores_that_no_exponential_can_hold() -> None:
    step = make_step(FEW, SMALL, torch.float32)
    check(step, softcap=5.0, scale=100.0)


def test_reference_caps_as_tanh_does() -> None:
    step = make_step([(1, 33)], Shape(2, 1, 16, 64), torch.float32)
    keys, values = (x[step.block_tables[0, 0], 0, :33] for x in (step.k_cache, step.v_cache))
    scores = 2.0 * torch.tanh(step.q[0] @ keys.T * 0.7 / 2.0)
    expected = scores.softmax(-1) @ values
    actual = attention_reference(*step.tensors, 0.7, softcap=2.0)[0]
    torch.testing.assert_close(actual, expected)


def test_reference_scales_keys_and_values_by_head() -> None:
    step = make_step([(2, 20)], Shape(4, 2, 16, 16), torch.float32)
    k_scale, v_scale = torch.tensor([0.5, 2.0]), torch.tensor([3.0, 0.25])
    actual = attention_reference(*step.tensors, 0.3, k_scale=k_scale, v_scale=v_scale)
    plain = replace(
        step,
        k_cache=step.k_cache * k_scale[:, None, None],
        v_cache=step.v_cache * v_scale[:, None, None],
    )
    torch.testing.assert_close(actual, naive_attention(plain, 0.3).float())


@pytest.mark.parametrize("softcap", [0.0, 4.0])
@pytest.mark.parametrize("has_type", [False, True], ids=["bits", "e4m3"])
def test_cache_of_eight_bits(
    has_type: bool, softcap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As bits, on devices that have no such type, and as the type that others have."""
    monkeypatch.setattr(attention_triton, "_has_e4m3", lambda _: has_type)
    step = with_fp8_cache(make_step([(2, 33), (1, 1100)], Shape(4, 2, 64, 16), torch.float32))
    scales = {"k_scale": torch.tensor([0.5, 1.7]), "v_scale": torch.tensor([3.0, 0.2])}
    check(step, softcap=softcap, **scales)


def test_cache_of_eight_bits_under_queries_of_sixteen() -> None:
    step = with_fp8_cache(make_step(FEW, Shape(4, 2, 128, 16), torch.bfloat16))
    check(step, k_scale=torch.tensor([0.5, 1.7]))
    check(step, v_scale=torch.tensor([0.5, 1.7]))


def test_every_number_of_eight_bits_is_read_exactly() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes[[0x7F, 0xFF]] = 0  # NaN
    values = codes.view(torch.float8_e4m3fn).view(16, 1, 1, 16)
    keys = torch.zeros(16, 1, 1, 16).to(torch.float8_e4m3fn)
    tables = torch.arange(16, dtype=torch.int32)[:, None]
    starts, lengths = torch.arange(17).int(), torch.ones(16).int()
    q = torch.ones(16, 1, 16)
    out = attention(q, keys, values, tables, starts, lengths, 1.0)
    assert torch.equal(out, values.float().view(16, 1, 16))


def test_a_padded_step_gives_the_same_rows_and_writes_no_others() -> None:
    """Sequences without rows and tokens, and rows that belong to nobody, as a CUDA graph has."""
    step = make_step([(1, 40), (1, 17), (1, 1300)], SMALL, torch.float32)
    padded = replace(
        step,
        q=torch.cat([step.q, torch.full((2, 3, 64), torch.nan)]),
        block_tables=torch.cat([step.block_tables, torch.full((2, 83), -(1 << 30))]).int(),
        cu_seqlens=torch.tensor([0, 1, 2, 3, 3, 3]).int(),
        lengths=torch.tensor([40, 17, 1300, 0, 0]).int(),
    )
    out = attend(padded)
    assert torch.equal(out[:3], attend(step))
    assert out[3:].isnan().all()


def test_sequences_without_rows_may_lie_between_others() -> None:
    step = make_step([(1, 40), (0, 17), (1, 33), (0, 5), (0, 9), (2, 50)], SMALL, torch.float32)
    check(step)


def test_no_rows_at_all() -> None:
    assert attend(make_step([(0, 4)], SMALL, torch.float32)).shape == (0, 3, 64)


def test_a_small_workspace_takes_more_launches_and_gives_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = make_step([(1, 1300), (1, 1100)], Shape(3, 3, 64, 16), torch.float32)
    scales = {"k_scale": torch.rand(3) + 0.5, "v_scale": torch.rand(3) + 0.5}
    whole = attend(step, **scales)
    monkeypatch.setattr(
        attention_plan, "WORKSPACE_BYTES", 2 * 3 * 2 * 64 * 4
    )  # two heads', 3 splits
    assert torch.equal(attend(step, **scales), whole)


def test_offsets_need_64_bits() -> None:
    """A pool of more than 2^31 numbers, of which a few blocks only are ever touched."""
    block = (1, 16, 128)
    num_blocks = (1 << 31) // (16 * 128) + 4
    caches = [torch.empty(num_blocks, *block, dtype=torch.float8_e4m3fn) for _ in range(2)]
    used = [num_blocks - 1, num_blocks - 3, 1]
    for cache in caches:
        cache[used] = torch.randn(3, *block).to(torch.float8_e4m3fn)
    tables = torch.tensor([used], dtype=torch.int32)
    small = torch.tensor([[0, 1, 2]], dtype=torch.int32)
    q, starts, lengths = (
        torch.randn(2, 2, 128),
        torch.tensor([0, 2]).int(),
        torch.tensor([45]).int(),
    )
    actual = attention(q, *caches, tables, starts, lengths, 0.1)
    expected = attention(q, *(cache[used] for cache in caches), small, starts, lengths, 0.1)
    assert torch.equal(actual, expected)
