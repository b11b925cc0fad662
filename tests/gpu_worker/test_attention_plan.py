"""How attention is cut: grids have room for every step of their shapes, and stay within bounds."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gpu_worker.kernels.attention_plan import (
    FIXED_SPLIT_TOKENS,
    MAX_SPLITS,
    TILES,
    WORKSPACE_BYTES,
    Plan,
    Schedule,
    groups_of_launch,
    make_plan,
)
from gpu_worker.kernels.attention_tile_triton import find_sequence, first_tile


def plan_8b(rows: int, sequences: int, context: int, schedule: Schedule | None = None) -> Plan:
    return make_plan(rows, sequences, 8, 4, 128, context, schedule or Schedule())


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    heads=st.sampled_from([1, 3, 4, 16]),
    deterministic=st.booleans(),
)
@settings(max_examples=25)
def test_every_row_has_one_tile(counts: list[int], heads: int, deterministic: bool) -> None:
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    num_rows = int(starts[-1])
    cut = make_plan(num_rows, len(counts), 1, heads, 64, 100, Schedule(deterministic=deterministic))
    covered = tiles(cut, starts)
    assert sorted(covered) == list(range(num_rows))


def tiles(cut: Plan, starts: Tensor) -> list[int]:
    """The rows of all tiles, tile by tile, as a kernel finds them."""
    found = torch.zeros((max(1, cut.num_tiles), 3), dtype=torch.int32)
    if cut.num_tiles:
        _tile_kernel[(cut.num_tiles,)](starts, found, len(starts) - 1, TILE=cut.tokens_of_tile)
    rows = []
    for first, start, stop in found.tolist():
        rows += range(start + first, min(stop, start + first + cut.tokens_of_tile))
    return rows


@triton.jit
def _tile_kernel(cu_seqlens_ptr, found_ptr, num_sequences, TILE: tl.constexpr):  # noqa: N803
    tile = tl.program_id(0)
    s = find_sequence(tile, cu_seqlens_ptr, num_sequences, TILE)
    start = tl.load(cu_seqlens_ptr + s)
    first = (tile - first_tile(s, start, TILE)) * TILE
    tl.store(found_ptr + tile * 3, first)
    tl.store(found_ptr + tile * 3 + 1, start)
    tl.store(found_ptr + tile * 3 + 2, tl.load(cu_seqlens_ptr + s + 1))


@given(
    rows=st.integers(1, 20_000),
    sequences=st.integers(1, 300),
    groups=st.integers(1, 16),
    heads=st.integers(1, 40),
    head_size=st.sampled_from([64, 80, 96, 128, 256]),
    context=st.integers(0, 1 << 20),
    deterministic=st.booleans(),
    target=st.sampled_from(sorted(TILES)),
    num_processors=st.integers(1, 300),
)
def test_grids_have_room_and_bounds(
    rows: int,
    sequences: int,
    groups: int,
    heads: int,
    head_size: int,
    context: int,
    deterministic: bool,
    target: str,
    num_processors: int,
) -> None:
    schedule = Schedule(num_processors, target, deterministic)
    cut = make_plan(rows, sequences, groups, heads, head_size, context, schedule)
    assert cut.num_splits * cut.split_tokens >= context
    assert cut.split_tokens % cut.tile.tokens == 0
    assert cut.rows & (cut.rows - 1) == 0
    assert cut.tokens_of_tile * heads <= cut.rows >= 16
    if deterministic:
        assert cut.split_tokens == FIXED_SPLIT_TOKENS
    else:
        assert cut.num_splits <= MAX_SPLITS
    bytes_of_row = heads * head_size * 4
    at_once = groups_of_launch(cut, rows, groups, bytes_of_row)
    assert 1 <= at_once <= groups
    used = cut.num_splits * rows * bytes_of_row * at_once
    assert used <= WORKSPACE_BYTES or at_once == 1 or cut.num_splits == 1


@given(
    steps=st.lists(
        st.tuples(st.integers(1, 9000), st.integers(1, 300), st.integers(1, 1 << 17)),
        min_size=2,
        max_size=2,
    )
)
def test_the_fixed_order_knows_no_batch(steps: list[tuple[int, int, int]]) -> None:
    one, other = (plan_8b(*step, Schedule(deterministic=True)) for step in steps)
    assert one.split_tokens == other.split_tokens
    assert (one.tile, one.rows, one.tokens_of_tile) == (
        other.tile,
        other.rows,
        other.tokens_of_tile,
    )


@pytest.mark.parametrize(
    ("rows", "sequences", "context", "tokens_of_tile", "num_splits"),
    [
        pytest.param(1, 1, 512, 1, 1, id="a-short-context-is-not-split"),
        pytest.param(16, 16, 1024, 1, 1, id="decode-16-1k"),
        pytest.param(64, 64, 1024, 1, 1, id="decode-64-1k"),
        pytest.param(16, 16, 8192, 1, 8, id="decode-16-8k"),
        pytest.param(64, 64, 8192, 1, 4, id="decode-64-8k"),
        pytest.param(1, 1, 8192, 1, 16, id="decode-1-8k"),
        pytest.param(1, 1, 1 << 17, 1, 64, id="decode-1-128k"),
        pytest.param(256, 256, 8192, 1, 4, id="no-long-context-is-left-to-one-program"),
        pytest.param(48, 16, 8192, 4, 5, id="three-tokens-each"),
        pytest.param(2048, 1, 2048, 32, 1, id="a-prompt"),
        pytest.param(2048, 1, 32768, 32, 4, id="a-chunk-over-a-long-context"),
        pytest.param(128, 1, 32768, 32, 7, id="a-small-chunk-over-a-long-context"),
    ],
)
def test_plans_of_an_8b_model(
    rows: int, sequences: int, context: int, tokens_of_tile: int, num_splits: int
) -> None:
    cut = plan_8b(rows, sequences, context)
    assert (cut.tokens_of_tile, cut.num_splits) == (tokens_of_tile, num_splits)
