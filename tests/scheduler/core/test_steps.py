"""What a step computes, asserted on the plan."""

import pytest

from common.messages import FinishReason, StepResult
from tests.scheduler.core.driving import TOKEN, Drive, chunks


def test_a_long_prompt_catches_up_in_chunks_and_then_decodes() -> None:
    drive = Drive(max_step_tokens=16)
    drive.add("a", 40, max_tokens=3)
    plans = [drive.step() for _ in range(5)]
    assert [chunks(plan) for plan in plans] == [
        [("a", 0, 16)],
        [("a", 16, 16)],
        [("a", 32, 8)],
        [("a", 40, 1)],
        [("a", 41, 1)],
    ]
    assert [plan.chunks[0].samples for plan in plans] == [False, False, True, True, True]
    (ended,) = drive.scheduler.take_ended()
    assert (ended.num_output, ended.kept, ended.finish_reason) == (3, 3, FinishReason.LENGTH)


def test_the_next_step_computes_a_token_that_is_only_promised() -> None:
    drive = Drive(depth=2)
    made = drive.add("a", 3)
    assert [chunks(drive.plan()) for _ in range(3)] == [
        [("a", 0, 3)],
        [("a", 3, 1)],
        [("a", 4, 1)],
    ]
    assert (made.num_promised, made.num_planned, made.num_computed) == (3, 5, 0)
    assert drive.answer() == [made]
    assert made.tokens[-1] == TOKEN
    assert (made.num_promised, made.num_planned, made.num_computed) == (2, 5, 3)


def test_known_tokens_of_an_answer_are_computed_again_without_being_drawn_again() -> None:
    drive = Drive(max_step_tokens=4, depth=0)
    made = drive.add("a", 3)
    for _ in range(6):
        drive.step()
    drive.scheduler.hold(made.id)
    drive.scheduler.release(made.id)
    plans = [drive.step() for _ in range(4)]
    assert [chunks(plan)[0][1:] for plan in plans] == [(0, 4), (4, 4), (8, 1), (9, 1)]
    assert [plan.chunks[0].samples for plan in plans] == [False, False, True, True]


def test_a_step_says_what_its_time_depends_on() -> None:
    """Two rows decode, the seventh and the fourth token; a prompt of eight goes on at its fifth."""
    drive = Drive(max_step_tokens=13, depth=0)
    drive.add("a", 6)
    drive.add("b", 3)
    drive.add("c", 8)
    drive.step()
    step = drive.scheduler.last
    assert (step.num_tokens, step.num_decoding) == (13, 0)
    assert step.prefill_attention == 6 * 3 + 3 * 1.5 + 4 * 2
    drive.step()
    step = drive.scheduler.last
    assert (step.num_tokens, step.num_decoding, step.decode_context) == (6, 2, 7 + 4)
    assert step.prefill_attention == 4 * (4 + 8) / 2


def test_nothing_is_planned_beyond_the_last_token_allowed() -> None:
    drive = Drive(depth=4)
    drive.add("a", 3, max_tokens=2)
    drive.plan()
    drive.plan()
    assert drive.scheduler.schedule() is None
    assert drive.finish() == ["a"]


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_steps_are_planned_as_far_ahead_as_depth_says(depth: int) -> None:
    drive = Drive(depth=depth)
    drive.add("a", 3)
    for _ in range(depth + 1):
        assert drive.scheduler.can_plan()
        drive.plan()
    assert not drive.scheduler.can_plan()
    assert drive.scheduler.schedule() is None
    drive.answer()
    assert drive.scheduler.can_plan()


def test_an_idle_scheduler_plans_nothing() -> None:
    assert Drive().scheduler.schedule() is None


def test_a_result_applied_before_is_ignored() -> None:
    drive = Drive()
    made = drive.add("a", 2)
    drive.step()
    assert drive.apply(drive.results[0]) == ()
    assert made.num_output == 1


@pytest.mark.parametrize("step", [2, 3])
def test_a_result_out_of_order_is_refused(step: int) -> None:
    drive = Drive()
    drive.add("a", 2)
    drive.plan()
    drive.plan()
    with pytest.raises(ValueError, match=f"step {step} applied after 0"):
        drive.apply(StepResult(step, (), 0.0))
