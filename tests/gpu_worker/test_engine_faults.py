"""Plans that contradict what the engine knows are refused before anything is computed."""

from pathlib import Path
from typing import Any

import pytest

from common.messages import Chunk, Sampling, Swap
from gpu_worker.engine import EngineError
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

GREEDY = Sampling(seed=0, temperature=0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    path: Path = tmp_path_factory.mktemp("model")
    make_reference("llama").save_pretrained(path)
    return load(path)


@pytest.fixture
def hand(model: Llama) -> Hand:
    return make_hand(model)


@pytest.mark.parametrize("num_computed", [-1, 21, 30])
def test_a_row_has_at_least_one_token_to_compute(hand: Hand, num_computed: int) -> None:
    row = start("a.0", PROMPT, GREEDY, num_computed=num_computed)
    with pytest.raises(EngineError, match=f"{num_computed} of 21 tokens computed"):
        hand.execute(Chunk(row.request_id, 20, 1, blocks(0, 3), samples=True), admitted=[row])


@pytest.mark.parametrize("first", [0, 15, 17])
def test_the_first_chunk_starts_behind_what_is_computed(hand: Hand, first: int) -> None:
    fill(hand, "b.0", 0, 3)
    row = start("a.0", PROMPT, GREEDY, num_computed=16)
    chunk = Chunk(row.request_id, first, 21 - first, blocks(0, 3), samples=True)
    with pytest.raises(EngineError, match="elsewhere"):
        hand.execute(chunk, admitted=[row])


def test_a_later_chunk_starts_behind_the_one_before(hand: Hand) -> None:
    row = start("a.0", PROMPT, GREEDY)
    hand.execute(Chunk(row.request_id, 0, 8, blocks(0, 3), samples=False), admitted=[row])
    with pytest.raises(EngineError, match="elsewhere"):
        hand.execute(Chunk(row.request_id, 7, 14, (), samples=True))


def test_blocks_of_computed_tokens_come_with_the_first_chunk(hand: Hand) -> None:
    fill(hand, "b.0", 0, 2)
    row = start("a.0", OTHER[:20], GREEDY, num_computed=16)
    with pytest.raises(EngineError, match="no block"):
        hand.execute(Chunk(row.request_id, 16, 4, blocks(2, 1), samples=True), admitted=[row])


@pytest.mark.parametrize(
    ("way", "pairs", "message"),
    [
        ("swap_out", swaps([40], [0]), "block 40 and host block 0"),
        ("swap_out", swaps([-1], [0]), "block -1"),
        ("swap_out", swaps([0], [HOST_BLOCKS]), "host block 16"),
        ("swap_out", swaps([0, 1], [2, 2]), "one block twice"),
        ("swap_in", swaps([5, 6], [0, 9]), "hold nothing.*9"),
        ("swap_in", swaps([5, 5], [0, 1]), "one block twice"),
        ("swap_in", swaps([5], [-1]), "host block -1"),
    ],
)
def test_swaps_that_cannot_be(hand: Hand, way: str, pairs: list[Swap], message: str) -> None:
    fill(hand, "a.0", 0, 2)
    hand.execute(swap_out=swaps([0, 1], [0, 1]))
    fields: dict[str, Any] = {way: pairs}
    with pytest.raises(EngineError, match=message):
        hand.execute(**fields)


def test_nothing_can_be_swapped_in_that_was_swapped_out_before_a_reset(hand: Hand) -> None:
    fill(hand, "a.0", 0, 2)
    hand.execute(swap_out=swaps([0], [0]))
    hand.execute(swap_in=swaps([5], [0]))
    hand.engine.reset()
    with pytest.raises(EngineError, match="hold nothing"):
        hand.execute(swap_in=swaps([5], [0]))
