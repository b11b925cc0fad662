"""How requests end, and what the worker hears of it."""

import pytest

from common.messages import FinishReason, RequestId, Sampled, StepResult
from tests.scheduler.core.driving import END_TOKEN, TOKEN, Drive, chunks, names


def test_a_cancelled_request_leaves_the_next_plan_and_ends_after_those_that_name_it() -> None:
    drive = Drive()
    made = drive.add("a", 2)
    drive.add("b", 2)
    drive.plan()
    drive.plan()
    drive.scheduler.end(made.id, FinishReason.CANCELLED)
    assert drive.scheduler.take_ended() == []
    drive.answer()
    assert drive.scheduler.take_ended() == []
    plan = drive.plan()
    assert (names(plan.released), chunks(plan)) == (["a"], [("b", 3, 1)])
    assert drive.answer()[0] is made
    assert made.tokens[-1] == TOKEN
    assert drive.scheduler.take_ended() == [made]
    assert drive.scheduler.take_ended() == []
    assert (made.kept, made.finish_reason) == (2, FinishReason.CANCELLED)


def test_one_that_waits_ends_at_once() -> None:
    drive = Drive()
    made = drive.add("a", 2)
    drive.scheduler.end(made.id, FinishReason.DEADLINE, error="too late")
    assert drive.scheduler.take_ended() == [made]
    assert (made.kept, made.finish_reason, made.error) == (0, FinishReason.DEADLINE, "too late")
    assert drive.scheduler.schedule() is None


@pytest.mark.parametrize(("asked", "kept"), [(1, 1), (9, 3)])
def test_a_stop_keeps_the_tokens_that_it_names(asked: int, kept: int) -> None:
    drive = Drive()
    made = drive.add("a", 2)
    drive.step()
    drive.step()
    drive.plan()
    drive.scheduler.end(made.id, FinishReason.STOP, kept=asked)
    drive.answer()
    (ended,) = drive.scheduler.take_ended()
    assert (ended.kept, ended.num_output) == (kept, 3)


def test_one_that_ends_by_itself_is_passed_over_by_the_step_that_names_it_too() -> None:
    drive = Drive()
    made = drive.add("a", 2)
    drive.plan()
    drive.plan()
    assert drive.answer(token=END_TOKEN) == [made]
    assert made.tokens[-1] == END_TOKEN
    assert drive.scheduler.take_ended() == []
    assert drive.scheduler.pool.num_coming > 0
    drive.scheduler.end(made.id, FinishReason.CANCELLED)
    assert drive.answer() == []
    assert drive.scheduler.take_ended() == [made]
    assert (made.finish_reason, made.kept) == (FinishReason.STOP, 1)
    plan = drive.plan()
    assert (names(plan.released), plan.chunks) == (["a"], ())


def test_an_error_ends_one_row_and_the_others_go_on() -> None:
    drive = Drive()
    made = drive.add("a", 2)
    drive.add("b", 2, max_tokens=2)
    drive.plan()
    drive.answer(failing=("a",))
    assert drive.scheduler.take_ended() == [made]
    assert (made.finish_reason, made.error, made.kept) == (FinishReason.ERROR, "broken", 0)
    assert drive.finish() == ["b"]


@pytest.mark.parametrize("position", [None, 1])
def test_a_token_that_the_worker_lost_ends_the_request_with_an_error(position: int | None) -> None:
    drive = Drive()
    made = drive.add("a", 2)
    plan = drive.plan()
    sampled = () if position is None else (Sampled(made.id, position, TOKEN),)
    drive.apply(StepResult(plan.step, sampled, 0.0))
    assert drive.scheduler.take_ended() == [made]
    assert (made.finish_reason, made.error) == (FinishReason.ERROR, "the worker lost a token")
    assert (made.num_output, made.num_promised) == (0, 0)


def test_a_complete_answer_ends_at_once() -> None:
    drive = Drive()
    drive.add("a", 2, max_tokens=2, tokens=[1, 2, 7, 7])
    (ended,) = drive.scheduler.take_ended()
    assert (ended.kept, ended.finish_reason) == (2, FinishReason.LENGTH)


def test_the_end_of_the_last_one_is_told_to_the_worker() -> None:
    drive = Drive()
    drive.add("a", 2, max_tokens=1)
    drive.step()
    plan = drive.step()
    assert (names(plan.released), plan.chunks) == (["a"], ())
    assert drive.scheduler.schedule() is None


def test_unknown_ids_and_repetitions_change_nothing() -> None:
    drive = Drive()
    drive.add("a", 2)
    unknown = RequestId("x.0")
    drive.scheduler.end(unknown, FinishReason.CANCELLED)
    drive.scheduler.hold(unknown)
    drive.scheduler.release(unknown)
    drive.scheduler.set_priority(unknown, 3)
    drive.scheduler.set_gateways(unknown, ())
    drive.add("a", 9)
    assert chunks(drive.step()) == [("a", 0, 2)]
    assert drive.scheduler.schedule() is not None
