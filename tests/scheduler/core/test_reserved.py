"""kv=reserved: one range for each request, for the longest that it may become."""

from typing import Any

import pytest

from common.messages import FinishReason, RequestId
from tests.scheduler.core.driving import Drive, request, started


def reserved(**fields: Any) -> Drive:
    return Drive(kv="reserved", **{"max_request_tokens": 32, "num_blocks": 16, **fields})


def tables(drive: Drive) -> dict[str, list[int]]:
    return {row.id[:-2]: list(row.block_table) for row in drive.scheduler.running.rows}


@pytest.mark.parametrize(
    ("reservation", "num_blocks"),
    [("exact", 4), ("power_of_two", 5), ("maximum", 8)],
)
def test_an_admission_takes_what_the_reservation_says(reservation: str, num_blocks: int) -> None:
    """4 tokens of prompt and up to 10 of an answer, in blocks of 4: 13, 4 + 16 and 32 tokens."""
    drive = reserved(reservation=reservation)
    drive.add("a", 4, max_tokens=10)
    (chunk,) = drive.step().chunks
    assert chunk.new_blocks == tuple(range(num_blocks))
    for _ in range(9):
        drive.step()
        assert len(tables(drive).get("a", chunk.new_blocks)) == num_blocks, "it grew"
    assert drive.finish() == ["a"]


@pytest.mark.parametrize(("max_tokens", "num_blocks"), [(16, 5), (17, 8), (1, 2)])
def test_a_power_of_two_is_of_the_answer_and_no_more_than_a_request_may_have(
    max_tokens: int, num_blocks: int
) -> None:
    drive = reserved(reservation="power_of_two")
    assert drive.add("a", 4, max_tokens=max_tokens).max_blocks == num_blocks


def test_blocks_that_are_free_in_pieces_serve_nobody_who_needs_more_than_a_piece() -> None:
    drive = reserved(num_blocks=6)
    drive.add("a", 4, max_tokens=2)
    drive.add("b", 4, max_tokens=9)
    drive.step()
    assert tables(drive) == {"a": [0, 1], "b": [2, 3, 4]}
    drive.step()
    drive.add("d", 8, max_tokens=5)
    drive.step()
    assert drive.scheduler.pool.num_free == 3
    assert drive.passed == [("d", "no_blocks")]
    assert started(drive.step()) == []
    drive.scheduler.end(RequestId("b.0"), FinishReason.CANCELLED)
    assert started(drive.step()) == ["d"], "the pieces have grown together"


def test_a_row_never_lacks_blocks_and_nobody_is_preempted() -> None:
    drive = reserved(num_blocks=8, block_size=2)
    for name in "abc":
        drive.add(name, 3, max_tokens=6)
    drive.step()
    assert drive.running == ["a", "b"]
    while drive.scheduler.requests:
        drive.step()
        drive.take_ended()
        assert drive.preempted == []
        assert drive.scheduler.last.short == []


def test_a_reservation_that_the_cache_is_too_small_for_is_refused() -> None:
    drive = reserved(num_blocks=7, reservation="maximum")
    assert drive.scheduler.never_fits(request("a", 4, 4)) is not None
    assert (
        reserved(num_blocks=8, reservation="maximum").scheduler.never_fits(request("a", 4, 4))
        is None
    )
