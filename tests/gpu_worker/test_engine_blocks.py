"""Rows whose blocks were swapped, shared or given in one range answer as they do without."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from common.messages import Chunk, Ending, FinishReason, RowStart, Sampling
from gpu_worker.llama import Llama
from tests.gpu_worker.by_hand import (
    HOST_BLOCKS,
    OTHER,
    PROMPT,
    Hand,
    blocks,
    fill,
    make_hand,
    start,
    swaps,
)
from tests.gpu_worker.tiny import load, make_reference

COUNT = 14  # tokens of an answer
SAMPLINGS = [
    pytest.param(Sampling(seed=0, temperature=0.0), id="greedy"),
    pytest.param(Sampling(seed=99, temperature=0.9, top_p=0.95), id="drawn"),
    pytest.param(
        Sampling(
            seed=7,
            temperature=0.7,
            presence_penalty=0.8,
            frequency_penalty=0.9,
            repetition_penalty=1.4,
        ),
        id="penalised",
    ),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    path: Path = tmp_path_factory.mktemp("model")
    make_reference("llama").save_pretrained(path)
    return load(path)


@pytest.fixture
def hand(model: Llama) -> Hand:
    return make_hand(model)


def plain(model: Llama, row: RowStart, count: int = COUNT) -> list[int]:
    return make_hand(model).plain(row, count)


def come_back(row: RowStart, answer: list[int], num_computed: int) -> RowStart:
    """The row as it starts again with what is known of it."""
    return replace(row, tokens=(*row.tokens, *answer), num_computed=num_computed)


# --- Swapped ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("before", [1, 3, 4, 11])  # tokens 22, 24 (a full block), 25 and 32
def test_a_row_that_was_swapped_out_goes_on(model: Llama, sampling: Sampling, before: int) -> None:
    hand, row = make_hand(model), start("a.0", PROMPT, sampling)
    hand.plain(row, before)
    computed = len(PROMPT) + before - 1
    used = hand.blocks_for(computed)
    pairs = swaps(range(used), range(HOST_BLOCKS - 1, HOST_BLOCKS - 1 - used, -1))
    other = start("b.0", OTHER[:32], sampling)
    hand.execute(
        Chunk(other.request_id, 0, 32, blocks(0, 7), samples=True),  # into the same blocks
        released=[row.request_id],
        admitted=[other],
        swap_out=pairs,
    )
    hand.decode(other)
    back = come_back(row, hand.answer(row), computed)
    table = blocks(20, 7)[::-1]
    hand.execute(
        Chunk(row.request_id, computed, 1, table, samples=True),
        Chunk(other.request_id, 33, 1, (), samples=True),
        admitted=[back],
        swap_in=[(block, host) for block, (_, host) in zip(table, pairs, strict=False)],
    )
    for _ in range(COUNT - before - 1):
        hand.decode(row, other)
    assert hand.answer(row) == plain(model, row)
    assert hand.answer(other) == plain(model, other, len(hand.answer(other)))


def test_a_row_that_was_swapped_out_in_mid_prompt_goes_on(model: Llama, hand: Hand) -> None:
    row = start("a.0", PROMPT, Sampling(seed=5, temperature=0.8))
    hand.execute(Chunk(row.request_id, 0, 13, blocks(0, 2), samples=False), admitted=[row])
    hand.execute(released=[row.request_id], swap_out=swaps([0, 1], [4, 5]))
    other = fill(hand, "b.0", 0, 2)
    hand.execute(
        Chunk(row.request_id, 13, 8, blocks(30, 5), samples=True),
        released=[other.request_id],
        admitted=[replace(row, num_computed=13)],
        swap_in=swaps([30, 31], [4, 5]),
    )
    for _ in range(COUNT - 1):
        hand.decode(row)
    assert hand.answer(row) == plain(model, row)


def test_two_rows_change_places_in_one_plan(model: Llama, hand: Hand) -> None:
    """One goes out and the other comes in, through the same three blocks."""
    sampling = Sampling(seed=3, temperature=0.8)
    leaves, comes = start("a.0", PROMPT, sampling), start("b.0", OTHER[:17], sampling)
    for row, first in ((leaves, 0), (comes, 3)):
        table = blocks(first, 3)
        hand.execute(Chunk(row.request_id, 0, len(row.tokens), table, samples=True), admitted=[row])
    host = {leaves.request_id: (0, 1, 2), comes.request_id: (3, 4, 5)}
    hand.execute(released=[comes.request_id], swap_out=swaps([3, 4, 5], host[comes.request_id]))
    for _ in range(5):
        computed = len(comes.tokens) + len(hand.answer(comes)) - 1
        hand.execute(
            Chunk(comes.request_id, computed, 1, blocks(0, 3), samples=True),
            released=[leaves.request_id],
            admitted=[come_back(comes, hand.answer(comes), computed)],
            swap_out=swaps([0, 1, 2], host[leaves.request_id]),
            swap_in=swaps([0, 1, 2], host[comes.request_id]),
        )
        leaves, comes = comes, leaves
    for row, count in ((leaves, 4), (comes, 3)):
        assert hand.answer(row) == plain(model, row, count)


def test_min_tokens_end_tokens_and_the_last_token_count_from_the_beginning(model: Llama) -> None:
    greedy = Sampling(seed=0, temperature=0.0)
    truth = plain(model, start("a.0", PROMPT, greedy))
    ending = Ending(max_tokens=9, min_tokens=7, end_tokens=(truth[5],))
    row = start("a.0", PROMPT, greedy, ending)
    expected = plain(model, row, 9)
    assert truth[:5] == expected[:5]
    assert truth[5] != expected[5]  # an end token, and too early
    hand = make_hand(model)
    hand.plain(row, 4)
    hand.execute(released=[row.request_id], swap_out=swaps([0, 1, 2], [0, 1, 2]))
    hand.execute(
        Chunk(row.request_id, 24, 1, blocks(10, 5), samples=True),
        admitted=[come_back(row, hand.answer(row), 24)],
        swap_in=swaps([10, 11, 12], [0, 1, 2]),
    )
    for _ in range(4):
        hand.decode(row)
    assert hand.answer(row) == expected
    finishes = [sampled.finish for sampled in hand.answers[row.request_id]]
    assert finishes == [None] * 8 + [FinishReason.LENGTH]


def test_host_memory_is_taken_at_the_first_swap(hand: Hand) -> None:
    pool = hand.engine._host
    assert pool._blocks is None
    fill(hand, "a.0", 0, 2)
    hand.execute(swap_out=swaps([1, 0], [3, 2]))
    assert pool._blocks is not None
    cache = hand.engine._processor.cache
    assert cache.k[:, :2].isfinite().all()
    for device, host in ((0, 2), (1, 3)):
        assert torch.equal(pool._blocks.k[:, host], cache.k[:, device])
        assert torch.equal(pool._blocks.v[:, host], cache.v[:, device])


# --- Shared -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_row_starts_from_the_blocks_of_another(model: Llama, sampling: Sampling) -> None:
    hand = make_hand(model)
    first = start("a.0", PROMPT, sampling)
    hand.plain(first, 2)
    same = start("b.0", (*PROMPT[:16], *OTHER[:9]), replace(sampling, seed=1), num_computed=16)
    short = start("c.0", PROMPT[:17], replace(sampling, seed=2), num_computed=16)
    hand.execute(
        Chunk(first.request_id, 22, 1, (), samples=True),
        Chunk(same.request_id, 16, 9, (*blocks(0, 2), *blocks(20, 4)), samples=True),
        Chunk(short.request_id, 16, 1, (*blocks(0, 2), *blocks(30, 4)), samples=True),
        admitted=[same, short],
    )
    hand.decode(first, same, short)
    hand.execute(released=[first.request_id])
    fill(hand, "d.0", 2, 2)  # of the first row's own blocks; the shared ones stay
    for _ in range(COUNT - 2):
        hand.decode(same, short)
    for row, count in ((first, 4), (same, COUNT), (short, COUNT)):
        assert hand.answer(row) == plain(model, replace(row, num_computed=0), count)


def test_a_shared_prefix_is_computed_in_chunks_from_where_it_ends(model: Llama, hand: Hand) -> None:
    sampling = Sampling(seed=4, temperature=0.8, repetition_penalty=1.3)
    first = start("a.0", OTHER, sampling)
    hand.plain(first, 1)
    row = start("b.0", (*OTHER[:24], *PROMPT), replace(sampling, seed=8), num_computed=24)
    table = (*blocks(0, 3), *blocks(20, 2))
    hand.execute(Chunk(row.request_id, 24, 10, table, samples=False), admitted=[row])
    hand.execute(Chunk(row.request_id, 34, 11, blocks(30, 4), samples=True))
    for _ in range(COUNT - 1):
        hand.decode(row)
    assert hand.answer(row) == plain(model, replace(row, num_computed=0))


# --- In one range -----------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_range_of_blocks_reserved_at_the_start(model: Llama, sampling: Sampling) -> None:
    hand, row = make_hand(model), start("a.0", PROMPT, sampling)
    count = hand.blocks_for(len(PROMPT) + COUNT)
    hand.execute(Chunk(row.request_id, 0, 9, blocks(17, count), samples=False), admitted=[row])
    hand.execute(Chunk(row.request_id, 9, 12, (), samples=True))
    for _ in range(COUNT - 1):
        hand.decode(row)
    scattered = make_hand(model)
    table = blocks(0, count)[::-1]
    scattered.execute(Chunk(row.request_id, 0, 21, table, samples=True), admitted=[row])
    for _ in range(COUNT - 1):
        scattered.decode(row)
    assert hand.answer(row) == scattered.answer(row) == plain(model, row)
