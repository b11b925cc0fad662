"""Named scenarios, asserted on the plan."""

import pytest

from common.messages import (
    Ending,
    FinishReason,
    GatewayId,
    RequestId,
    Sampled,
    Sampling,
    StepPlan,
    StepResult,
    SubmissionId,
    Submit,
)
from scheduler.core.decision import Reason
from scheduler.core.invariants import check
from scheduler.core.request import Request, Status
from scheduler.core.scheduler import Applied, Limits, Memory, Scheduler
from scheduler.core.strategies import Choices
from tests.doubles import ShadowWorker

TOKEN, END_TOKEN = 7, 0


class Drive:
    """A scheduler and its worker; `names` shortens the id `a.0` to `a`."""

    def __init__(
        self,
        *,
        num_blocks: int = 32,
        block_size: int = 4,
        max_step_tokens: int = 16,
        max_running: int = 4,
        depth: int = 1,
        max_preemptions: int = 3,
        num_host_blocks: int = 0,
        **choices: object,
    ) -> None:
        """The prefix cache is off unless asked for: prompts here are all alike."""
        limits = Limits(max_step_tokens, max_running, depth, 100, max_preemptions)
        memory = Memory(num_blocks, block_size, num_host_blocks)
        chosen = Choices(**{"prefix_cache": False, **choices})  # type: ignore[arg-type]
        self.scheduler = Scheduler(limits, memory, chosen)
        self.worker = ShadowWorker(
            num_blocks=num_blocks,
            block_size=block_size,
            max_rows=max_running,
            max_step_tokens=max_step_tokens,
        )
        self.results: list[StepResult] = []

    def add(
        self, name: str, num_prompt: int, max_tokens: int = 20, arrival: float = 0, **fields: object
    ) -> Request:
        made = request(name, num_prompt, max_tokens, arrival)
        for field, value in fields.items():
            setattr(made, field, value)
        assert self.scheduler.never_fits(made) is None
        self.scheduler.add(made)
        return made

    def plan(self) -> StepPlan:
        plan = self.scheduler.schedule()
        check(self.scheduler)
        assert plan, "nothing to do"
        self.worker.load(plan)
        return plan

    def answer(self, token: int = TOKEN, failing: tuple[str, ...] = ()) -> Applied:
        ids = [RequestId(f"{name}.0") for name in failing]
        self.results.append(self.worker.execute(lambda *_: token, ids))
        return self.apply(self.results[-1])

    def apply(self, result: StepResult) -> Applied:
        applied = self.scheduler.apply(result)
        self.worker.answered(result.step)
        check(self.scheduler)
        return applied

    def step(self) -> StepPlan:
        """Plan and answer: nothing is in flight before and after."""
        plan = self.plan()
        self.answer()
        return plan

    def finish(self) -> list[str]:
        """Until all are ended, in the order of their ends."""
        ended = []
        for _ in range(1_000):
            while plan := self.scheduler.schedule():
                self.worker.load(plan)
            if not self.worker.num_loaded:
                break
            self.answer()
            ended += [made.id[:-2] for made in self.scheduler.take_ended()]
        assert not self.scheduler.requests
        assert not self.worker.rows
        assert self.scheduler.pool.num_free == self.scheduler.pool.num_blocks
        return ended


def request(name: str, num_prompt: int, max_tokens: int = 20, arrival: float = 0) -> Request:
    submit = Submit(
        SubmissionId(name),
        (tuple(range(1, num_prompt + 1)),),
        1,
        Sampling(0),
        Ending(max_tokens, end_tokens=(END_TOKEN,)),
        GatewayId("g"),
    )
    return Request.from_submit(submit, 0, arrival)


def chunks(plan: StepPlan) -> list[tuple[str, int, int]]:
    return [(chunk.request_id[:-2], chunk.start, chunk.count) for chunk in plan.chunks]


def names(ids: tuple[RequestId, ...] | list[RequestId]) -> list[str]:
    return [request_id[:-2] for request_id in ids]


def started(plan: StepPlan) -> list[str]:
    return names([start.request_id for start in plan.admitted])


# --- catching up ------------------------------------------------------------------------------


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
    assert drive.answer().advanced == [(made, (TOKEN,))]
    assert (made.num_promised, made.num_planned, made.num_computed) == (2, 5, 3)


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


# --- who takes part ---------------------------------------------------------------------------


def test_who_decodes_goes_first_and_a_prompt_takes_what_is_left() -> None:
    drive = Drive(max_step_tokens=8)
    drive.add("a", 3)
    drive.add("b", 4)
    drive.step()
    drive.add("c", 20)
    assert chunks(drive.step()) == [("a", 3, 1), ("b", 4, 1), ("c", 0, 6)]
    assert chunks(drive.step()) == [("a", 4, 1), ("b", 5, 1), ("c", 6, 6)]


def test_an_older_prompt_does_not_starve_younger_ones_that_decode() -> None:
    drive = Drive(max_step_tokens=8)
    drive.add("young", 3, arrival=5)
    drive.step()
    drive.add("old", 30, arrival=1)
    assert chunks(drive.step()) == [("young", 3, 1), ("old", 0, 7)]
    assert chunks(drive.step()) == [("young", 4, 1), ("old", 7, 7)]


def test_the_line_goes_by_arrival_and_not_by_call() -> None:
    drive = Drive(max_running=2)
    for name, arrival in (("c", 3), ("a", 1), ("b", 2)):
        drive.add(name, 2, arrival=arrival)
    assert started(drive.plan()) == ["a", "b"]
    assert [seen.request_id for seen in drive.scheduler.line(9)] == ["c.0"]


def test_a_seat_that_empties_is_filled_by_the_next_plan() -> None:
    drive = Drive(max_running=1)
    drive.add("a", 2, max_tokens=1)
    drive.add("b", 2, max_tokens=1)
    drive.step()
    plan = drive.plan()
    assert (names(plan.released), started(plan)) == (["a"], ["b"])


def test_an_admission_needs_the_blocks_of_all_known_tokens() -> None:
    drive = Drive(num_blocks=8, max_step_tokens=5)
    drive.add("a", 15, max_tokens=4)
    assert drive.plan().chunks[0].new_blocks == (3, 2, 1, 0)
    drive.add("b", 17, max_tokens=3)
    drive.add("c", 1)
    for _ in range(4):
        drive.answer()
        assert started(drive.plan()) == []
    assert drive.scheduler.pool.num_free == 3
    assert drive.scheduler.last.passed == [("b.0", Reason.NO_BLOCKS)]
    assert drive.scheduler.line(9)[1].reason is Reason.BEHIND


def test_an_admission_leaves_a_block_for_each_that_grows() -> None:
    drive = Drive(num_blocks=4, block_size=4)
    drive.add("a", 4, max_tokens=12)
    drive.add("b", 4, max_tokens=4)
    drive.add("c", 4, max_tokens=1)
    assert started(drive.plan()) == ["a", "b"]
    assert drive.scheduler.last.passed == [("c.0", Reason.NO_BLOCKS)]


def test_those_that_need_no_more_blocks_want_no_headroom() -> None:
    drive = Drive(num_blocks=3, block_size=4)
    for name in "abc":
        drive.add(name, 2, max_tokens=3)
    assert started(drive.plan()) == ["a", "b", "c"]


def test_held_requests_do_not_block_the_line() -> None:
    drive = Drive()
    drive.add("a", 2, held=True)
    drive.add("b", 2)
    assert started(drive.step()) == ["b"]
    assert [seen.reason for seen in drive.scheduler.line(9)] == [Reason.HELD]
    drive.scheduler.release(RequestId("a.0"))
    assert started(drive.step()) == ["a"]


def test_one_that_runs_and_is_held_gives_up_its_row_until_released() -> None:
    drive = Drive()
    made = drive.add("a", 2)
    drive.plan()
    drive.plan()
    drive.scheduler.hold(made.id)
    drive.answer()
    plan = drive.plan()
    assert (names(plan.released), plan.chunks) == (["a"], ())
    assert (made.status, made.held, made.preemptions) == (Status.WAITING, True, 0)
    drive.scheduler.release(made.id)
    drive.answer()
    assert drive.scheduler.schedule() is not None
    assert made.tokens == [1, 2, TOKEN, TOKEN]
    assert (made.num_planned, made.num_promised) == (4, 1)


# --- shortage ---------------------------------------------------------------------------------


def full() -> tuple[Drive, Request, Request]:
    """Two requests hold two of four blocks each, both full after the next step."""
    drive = Drive(num_blocks=4, block_size=2, depth=1)
    old = drive.add("old", 2, max_tokens=6)
    young = drive.add("young", 1, max_tokens=6)
    assert chunks(drive.step()) == [("old", 0, 2), ("young", 0, 1)]
    assert chunks(drive.step()) == [("old", 2, 1), ("young", 1, 1)]
    return drive, old, young


def test_the_youngest_is_preempted_and_its_blocks_wait_for_the_step_in_flight() -> None:
    drive, old, young = full()
    drive.add("c", 1, max_tokens=5)
    assert chunks(drive.plan()) == [("old", 3, 1), ("young", 2, 1)]
    plan = drive.plan()
    assert (names(plan.released), started(plan), chunks(plan)) == (["young"], [], [])
    assert names([who for who, _ in drive.scheduler.last.preempted]) == ["young"]
    assert names(drive.scheduler.last.short) == ["old"]
    assert (young.status, young.preemptions, young.num_promised) == (Status.WAITING, 1, 1)
    assert drive.scheduler.pool.num_coming == 2
    drive.answer()
    assert young.num_promised == 0
    plan = drive.plan()
    assert chunks(plan) == [("old", 4, 1)]
    assert len(plan.chunks[0].new_blocks) == 1
    assert old.preemptions == 0
    assert drive.finish() == ["old", "young", "c"]


def test_a_preempted_one_comes_back_in_front_with_all_that_it_knew() -> None:
    drive, _, young = full()
    drive.add("c", 1, max_tokens=5)
    for _ in range(3):
        drive.step()
    assert young.status is Status.WAITING
    known = list(young.tokens)
    while not (plan := drive.step()).admitted:
        pass
    assert started(plan)[0] == "young"
    assert plan.admitted[0].tokens == tuple(known)
    assert ("young", 0, len(known)) in chunks(plan)


def test_nobody_comes_back_while_its_tokens_are_promised() -> None:
    drive = Drive(depth=3)
    made = drive.add("a", 2)
    drive.plan()
    drive.scheduler.hold(made.id)
    drive.scheduler.release(made.id)
    assert chunks(drive.plan()) == []
    assert drive.scheduler.last.passed == [("a.0", Reason.PROMISED)]
    drive.answer()
    assert chunks(drive.plan()) == [("a", 0, 3)]


def test_results_of_a_former_life_do_not_count_as_computed() -> None:
    drive = Drive(depth=3, max_step_tokens=4)
    made = drive.add("a", 12)
    drive.plan()
    drive.plan()
    drive.scheduler.hold(made.id)
    drive.scheduler.release(made.id)
    assert chunks(drive.plan()) == [("a", 0, 4)]
    drive.answer()
    drive.answer()
    assert made.num_computed == 0
    drive.answer()
    assert made.num_computed == 4


@pytest.mark.parametrize(("rows", "victims"), [("abc", ["c"]), ("abcde", ["e", "d"])])
def test_as_many_are_preempted_as_blocks_are_needed(rows: str, victims: list[str]) -> None:
    """Each holds two blocks and wants a third: what comes back from one is enough for two."""
    drive = Drive(num_blocks=2 * len(rows), block_size=2, max_running=5)
    for name in rows:
        drive.add(name, 1, max_tokens=5)
    for _ in range(3):
        drive.step()
    drive.plan()
    plan = drive.plan()
    assert names([who for who, _ in drive.scheduler.last.preempted]) == victims
    assert names(drive.scheduler.last.short) == [name for name in rows if name not in victims]
    assert plan.chunks == ()


def test_one_that_leaves_by_itself_spares_a_victim() -> None:
    drive = Drive(num_blocks=6, block_size=4)
    drive.add("old", 3, max_tokens=9)
    drive.add("leaving", 3, max_tokens=6)
    drive.add("young", 1, max_tokens=8)
    for _ in range(5):
        drive.step()
    assert chunks(drive.plan()) == [("old", 7, 1), ("leaving", 7, 1), ("young", 5, 1)]
    assert chunks(drive.plan()) == [("young", 6, 1)]
    assert names(drive.scheduler.last.short) == ["old"]
    assert drive.scheduler.last.preempted == []


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    drive = Drive(num_blocks=6, block_size=2)
    drive.add("old", 2, max_tokens=8, arrival=0)
    drive.add("young", 7, max_tokens=5, arrival=2)
    for _ in range(3):
        drive.step()
    drive.add("between", 1, max_tokens=2, arrival=1)
    plan = drive.step()
    assert names([who for who, _ in drive.scheduler.last.preempted]) == ["young"]
    assert drive.scheduler.last.passed == [("young.0", Reason.SHORTAGE)]
    assert chunks(plan) == [("old", 4, 1)]
    assert started(drive.step()) == [], "who was preempted goes first, and lacks blocks still"


def test_the_youngest_waits_rather_than_lose_what_it_has_computed() -> None:
    drive = Drive(num_blocks=4, block_size=2)
    drive.add("old", 3, max_tokens=4)
    young = drive.add("young", 1, max_tokens=6)
    for _ in range(2):
        drive.step()
    assert chunks(drive.step()) == [("old", 4, 1)]
    assert names(drive.scheduler.last.short) == ["young"]
    assert drive.scheduler.rows()[1].reason is Reason.NO_BLOCKS
    assert (young.status, young.num_computed) == (Status.RUNNING, 2)
    assert chunks(drive.step()) == [("old", 5, 1)]
    assert chunks(drive.step()) == [("young", 2, 1)]


def test_who_was_preempted_too_often_comes_back_for_good() -> None:
    drive = Drive(num_blocks=6, block_size=2, max_preemptions=1)
    drive.add("old", 2, max_tokens=7, arrival=0)
    young = drive.add("young", 1, max_tokens=7, arrival=1, preemptions=1)
    for _ in range(3):
        assert started(drive.step()) in ([], ["old"])
        assert drive.scheduler.last.passed == [(young.id, Reason.NO_BLOCKS)]
    assert drive.finish() == ["old", "young"]


def test_nobody_older_is_let_in_where_that_would_break_the_word() -> None:
    drive = Drive(num_blocks=6, block_size=2, max_preemptions=1)
    drive.add("young", 1, max_tokens=7, arrival=1, preemptions=1)
    drive.step()
    drive.add("old", 1, max_tokens=7, arrival=0)
    drive.step()
    assert drive.scheduler.last.passed == [("old.0", Reason.NO_BLOCKS)]
    assert drive.finish() == ["young", "old"]


# --- ends -------------------------------------------------------------------------------------


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
    assert drive.answer().advanced[0] == (made, (TOKEN,))
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
    assert drive.answer(token=END_TOKEN).advanced == [(made, (END_TOKEN,))]
    assert drive.scheduler.take_ended() == []
    assert drive.scheduler.pool.num_coming > 0
    drive.scheduler.end(made.id, FinishReason.CANCELLED)
    assert drive.answer().advanced == []
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


# --- results ----------------------------------------------------------------------------------


def test_a_result_applied_before_is_ignored() -> None:
    drive = Drive()
    made = drive.add("a", 2)
    drive.step()
    assert drive.apply(drive.results[0]).advanced == ()
    assert made.num_output == 1


@pytest.mark.parametrize("step", [2, 3])
def test_a_result_out_of_order_is_refused(step: int) -> None:
    drive = Drive()
    drive.add("a", 2)
    drive.plan()
    drive.plan()
    with pytest.raises(ValueError, match=f"step {step} applied after 0"):
        drive.apply(StepResult(step, (), 0.0))


# --- what else a plan carries -----------------------------------------------------------------


def test_new_viewers_go_out_with_the_next_plan_if_a_row_exists() -> None:
    drive = Drive(max_running=1)
    running, waiting = drive.add("a", 2, max_tokens=3), drive.add("b", 2)
    drive.step()
    for made in (running, waiting):
        drive.scheduler.set_gateways(made.id, (GatewayId("g"), GatewayId("h")))
    assert drive.step().gateways == (("a.0", ("g", "h")),)
    assert drive.step().gateways == ()
    assert drive.step().admitted[0].gateways == ("g", "h")


def test_viewers_of_a_row_that_is_gone_are_not_told() -> None:
    drive = Drive()
    made = drive.add("a", 2)
    drive.step()
    drive.scheduler.set_gateways(made.id, ())
    drive.scheduler.end(made.id, FinishReason.CANCELLED)
    assert drive.step().gateways == ()


def test_views_tell_who_runs_and_why_the_others_wait() -> None:
    drive = Drive(max_running=1, max_step_tokens=4)
    for name in "abc":
        drive.add(name, 8)
    drive.step()
    (row,) = drive.scheduler.rows()
    assert (row.request_id, row.status, row.reason) == ("a.0", Status.RUNNING, None)
    assert (row.num_prompt, row.num_computed, row.num_output, row.num_blocks) == (8, 4, 0, 2)
    reasons = [(seen.request_id, seen.reason) for seen in drive.scheduler.line(9)]
    assert reasons == [("b.0", Reason.NO_SEAT), ("c.0", Reason.BEHIND)]
    assert len(drive.scheduler.line(1)) == 1
    assert drive.scheduler.waiting.num_tokens == 16


def test_the_more_urgent_goes_first_and_who_runs_keeps_its_place() -> None:
    drive = Drive(max_running=1, preemption="never")
    for name in "abcd":
        drive.add(name, 2, max_tokens=2)
    drive.step()
    for name, priority in (("a", 9), ("b", 1), ("c", -1), ("d", 1)):
        drive.scheduler.set_priority(RequestId(f"{name}.0"), priority)
    check(drive.scheduler)
    assert drive.finish() == ["a", "c", "b", "d"]


# --- refusals and loss ------------------------------------------------------------------------


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
