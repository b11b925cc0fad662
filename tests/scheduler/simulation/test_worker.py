"""A worker alone, with plans by hand."""

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

from common.messages import (
    BlockId,
    Chunk,
    Ending,
    FinishReason,
    RequestId,
    RowStart,
    Sampled,
    Sampling,
    StepPlan,
)
from scheduler.core.decision import Decision, Reason
from scheduler.core.scheduler import Scheduler
from scheduler.simulation.cost import Linear
from scheduler.simulation.drawing import Recorder
from scheduler.simulation.fairness import Fairness
from scheduler.simulation.measures import Goals, Measures
from scheduler.simulation.track import Track
from scheduler.simulation.worker import VirtualWorker
from scheduler.simulation.workload import END_TOKEN

R = RequestId("r")
START = RowStart(R, (7, 7, 7), 3, Sampling(0), Ending(9, end_tokens=(END_TOKEN,)), ())
PROMPT = StepPlan(1, admitted=(START,), chunks=(Chunk(R, 0, 3, (BlockId(0),), True),))


class ByHand:
    """In place of a scheduler: hands out plans, the last of which preempts."""

    def __init__(self, *plans: StepPlan) -> None:
        self.pool = SimpleNamespace(num_blocks=4, block_size=4)
        self.requests = {R: None}
        self.last = Decision(0, 0)
        self._plans = deque(plans)

    def schedule(self) -> StepPlan | None:
        if not self._plans:
            return None
        plan = self._plans.popleft()
        self.last = Decision(plan.step, 0)
        singles = [chunk.start + 1 for chunk in plan.chunks if chunk.count == 1]
        self.last.num_decoding, self.last.decode_context = len(singles), sum(singles)
        if plan.released and not self._plans:
            self.last.preempted.append((R, Reason.RECOMPUTED))
        return plan


def worker(track: Track, *plans: StepPlan) -> VirtualWorker:
    core = cast("Scheduler", cast("Any", ByHand(*plans)))
    measures = Measures(Goals(), Fairness(1.0, 2.0, {}))
    measures.comes(track)
    measures.waits(track)
    made = VirtualWorker(core, Linear(1.0, token=1.0), measures, {R: track}, Recorder(1, 0))
    made.plan()
    return made


def test_a_step_takes_what_its_tokens_cost_and_gives_the_next_token() -> None:
    track = Track(R, "a", 0.0, 3, 2, token=42)
    busy = worker(track, PROMPT, StepPlan(2, chunks=(Chunk(R, 3, 1, (), True),)))
    assert busy.start() == 4.0
    assert busy.start() is None, "one step at a time"
    result = busy.finish(4.0)
    assert (result.step, result.seconds) == (1, 4.0)
    assert result.sampled == (Sampled(R, 0, 42),)
    assert busy.start() == 2.0
    assert busy.finish(6.0).sampled == (Sampled(R, 1, 42, FinishReason.LENGTH),)


def test_who_ended_by_itself_is_passed_over_until_it_is_released() -> None:
    track = Track(R, "a", 0.0, 3, 1, token=42, ends_itself=True)
    ahead = StepPlan(2, chunks=(Chunk(R, 3, 1, (BlockId(1),), True),))
    busy = worker(track, PROMPT, ahead, StepPlan(3, released=(R,)), StepPlan(4))
    busy.start()
    assert busy.finish(4.0).sampled == (Sampled(R, 0, END_TOKEN, FinishReason.STOP),)
    assert busy.start() == 0.0, "there is nothing to compute"
    assert busy.finish(4.0).sampled == ()
    assert busy.over == {R}
    assert busy.start() == 0.0
    assert (busy.rows, busy.over, busy.use.num_taken) == ({}, set(), 0)
    assert busy.measures.num_steps == 1


def test_a_preemption_that_came_too_late_is_none() -> None:
    """It was planned before the scheduler heard that the request had ended."""
    track = Track(R, "a", 0.0, 3, 1, token=42, ends_itself=True)
    busy = worker(track, PROMPT, StepPlan(2, released=(R,)))
    busy.start()
    busy.finish(4.0)
    busy.start()
    assert not busy.measures.preemptions
    assert track.preemptions == 0
