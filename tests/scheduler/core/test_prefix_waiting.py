"""Who waits for another one that computes its prefix, and until when."""

import pytest

from common.messages import (
    Ending,
    FinishReason,
    GatewayId,
    Sampling,
    SubmissionId,
    Submit,
)
from scheduler.core.request import Request
from tests.scheduler.core.driving import chunks, started
from tests.scheduler.core.test_prefix_sharing import FIRST, add, sharing


def test_who_begins_alike_waits_for_the_first_and_computes_the_rest() -> None:
    drive = sharing()
    add(drive, "a", *FIRST)
    add(drive, "b", *FIRST, 50)
    add(drive, "c", 60, 61)
    assert started(drive.plan()) == ["a", "c"], "those behind are not kept waiting"
    (seen,) = drive.scheduler.line(9)
    assert (seen.request_id, seen.reason, seen.blocker) == ("b.0", "prefix", "a.0")
    assert drive.scheduler.waiting.num_tokens == 0
    drive.answer()
    assert ("b", 8, 2) in chunks(drive.step())


def test_it_waits_for_all_blocks_that_the_first_computes() -> None:
    drive = sharing(max_step_tokens=5, max_request_tokens=60)
    add(drive, "a", *range(1, 14))
    made = add(drive, "b", *range(1, 14))
    plans = []
    while not made.was_admitted:
        plans.append(drive.step())
    assert ("b", 12, 1) in chunks(plans[-1])


def test_a_short_beginning_is_not_worth_waiting_for() -> None:
    """Four tokens of twenty."""
    drive = sharing()
    add(drive, "a", *FIRST)
    add(drive, "b", *FIRST[:4], *range(50, 66))
    assert started(drive.plan()) == ["a", "b"]


@pytest.mark.parametrize("how", ["cancel", "hold", "error"])
def test_who_waits_goes_on_alone_when_the_first_leaves(how: str) -> None:
    drive = sharing(max_step_tokens=6)
    first = add(drive, "a", *range(1, 14))
    add(drive, "b", *range(1, 14))
    drive.plan()
    drive.plan()
    match how:
        case "cancel":
            drive.scheduler.end(first.id, FinishReason.CANCELLED)
        case "hold":
            drive.scheduler.hold(first.id)
        case "error":
            drive.answer(failing=("a",))
    assert drive.scheduler.waiting.head
    assert drive.scheduler.waiting.head.id == "b.0"
    assert started(drive.next_start()) == ["b"]


def test_the_next_takes_over_when_the_first_leaves_and_the_others_wait_for_it() -> None:
    drive = sharing(max_step_tokens=14)
    first = add(drive, "a", *range(1, 14))
    for name in "bc":
        add(drive, name, *range(1, 14))
    drive.plan()
    drive.scheduler.end(first.id, FinishReason.CANCELLED)
    drive.answer()
    assert started(drive.plan()) == ["b"]
    (seen,) = drive.scheduler.line(9)
    assert (seen.request_id, seen.blocker) == ("c.0", "b.0")


def test_who_leaves_speaks_only_for_what_it_was_the_first_to_compute() -> None:
    drive = sharing(max_step_tokens=35, max_running=8)
    add(drive, "a", *range(1, 14))
    other = add(drive, "b", *range(1, 5), *range(50, 66))
    assert started(drive.plan()) == ["a", "b"]
    drive.scheduler.end(other.id, FinishReason.CANCELLED)
    add(drive, "c", *range(1, 14))
    assert started(drive.plan()) == []
    (seen,) = drive.scheduler.line(9)
    assert seen.blocker == "a.0"


@pytest.mark.parametrize("how", ["cancel", "hold", "take back", "priority"])
def test_who_waits_may_leave(how: str) -> None:
    drive = sharing()
    add(drive, "a", *FIRST)
    made = add(drive, "b", *FIRST)
    drive.plan()
    match how:
        case "cancel":
            drive.scheduler.end(made.id, FinishReason.CANCELLED)
        case "hold":
            drive.scheduler.hold(made.id)
        case "take back":
            assert drive.scheduler.take_back(made.id) is made
        case "priority":
            drive.scheduler.set_priority(made.id, -1)
            assert drive.scheduler.waiting.aside(made) is None
    assert not drive.scheduler.waiting.has_parked
    drive.answer()
    assert started(drive.plan()) == (["b"] if how == "priority" else [])


def test_choices_of_one_submission_share_their_prompt() -> None:
    drive = sharing(max_running=8)
    submit = Submit(SubmissionId("s"), (FIRST,), 4, Sampling(0), Ending(6), GatewayId("g"))
    choices = [Request.from_submit(submit, choice, choice) for choice in range(4)]
    for choice in choices:
        drive.scheduler.add(choice)
    assert [chunk.count for chunk in drive.step().chunks] == [9]
    assert [chunk.count for chunk in drive.step().chunks] == [1, 1, 1, 1]
    assert [choice.num_cached for choice in choices] == [0, 8, 8, 8]
    shared = {tuple(choice.block_table[:2]) for choice in choices}
    assert len(shared) == 1
