"""Who is refused, and who is handed back."""

import pytest

from common.messages import FinishReason
from scheduler.core.request import Status
from tests.scheduler.core.driving import TOKEN, Drive, chunks, request


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "reason"),
    [
        (80, 20, None),
        (81, 20, "101 tokens of prompt and answer are more than the 100 of a request"),
        (0, 20, "the prompt is empty"),
    ],
)
def test_a_request_that_never_fits_is_refused(
    num_prompt: int, max_tokens: int, reason: str | None
) -> None:
    assert Drive().scheduler.never_fits(request("a", num_prompt, max_tokens)) == reason


def test_the_last_token_needs_no_place_in_the_cache() -> None:
    drive = Drive(num_blocks=2, block_size=4)
    assert drive.scheduler.never_fits(request("a", 5, 4)) is None
    assert drive.scheduler.never_fits(request("a", 5, 5)) == (
        "10 tokens of prompt and answer are more than the 8 of the cache"
    )
    drive.add("a", 5, max_tokens=4)
    assert drive.finish() == ["a"]


def test_a_lost_worker_strands_what_is_unfinished() -> None:
    drive = Drive(max_running=2)
    cancelled, running, waiting = (drive.add(name, 2) for name in "abc")
    drive.plan()
    drive.plan()
    drive.answer()
    drive.scheduler.end(cancelled.id, FinishReason.CANCELLED)
    assert drive.scheduler.strand() == [running, waiting]
    assert drive.scheduler.take_ended() == [cancelled]
    assert (running.status, running.tokens) == (Status.WAITING, [1, 2, TOKEN])
    assert (running.num_promised, running.num_planned, running.in_flight) == (0, 0, 0)
    assert drive.scheduler.pool.num_free == drive.scheduler.pool.num_blocks
    assert drive.scheduler.schedule() is None
    other = Drive()
    for made in (running, waiting):
        other.scheduler.add(made)
    assert chunks(other.plan()) == [("b", 0, 3), ("c", 0, 2)]
    assert other.finish() == ["b", "c"]
