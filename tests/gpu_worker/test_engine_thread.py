"""One step launched ahead of the other, whatever comes of them; results in the order of plans."""

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from common.messages import StepPlan, StepResult
from gpu_worker.engine import Capacity, Computed, Engine, Launched
from gpu_worker.engine_thread import MAX_PLANS, EngineThread, Outcome
from gpu_worker.simulated import SimulatedEngine

CAPACITY = Capacity("m", "d", 8, 4, 64, 64, 4)


@dataclass
class Step:
    """Done when the test says so."""

    step: int
    error: Exception | None = None
    is_done: bool = False
    computed: threading.Event = field(default_factory=threading.Event)
    finished: bool = False

    def wait(self) -> None:
        assert self.computed.wait(10)
        if self.error:
            raise self.error

    def finish(self) -> StepResult:
        assert self.computed.is_set()
        self.finished = True
        if self.error:
            raise self.error
        return StepResult(self.step, (), 0.0)


class ScriptedEngine:
    """Launches what the test names; says how many were unfinished at each launch."""

    def __init__(
        self,
        *,
        fails: tuple[int, ...] = (),
        breaks: tuple[int, ...] = (),
        at_once: tuple[int, ...] = (),
    ) -> None:
        self.capacity = CAPACITY
        self.steps: dict[int, Step] = {}
        self.unfinished: list[int] = []
        self.fails, self.breaks, self.at_once = fails, breaks, at_once

    def launch(self, plan: StepPlan) -> Launched:
        self.unfinished.append(sum(not step.finished for step in self.steps.values()))
        if plan.step in self.fails:
            raise ValueError(f"launch {plan.step}")
        if plan.step in self.at_once:
            return Computed(StepResult(plan.step, (), 0.0))
        error = ValueError(f"step {plan.step}") if plan.step in self.breaks else None
        self.steps[plan.step] = Step(plan.step, error)
        return self.steps[plan.step]

    def execute(self, plan: StepPlan) -> StepResult:
        return self.launch(plan).finish()

    def reset(self) -> None: ...


class Run:
    def __init__(self, engine: Engine) -> None:
        self.outcomes: list[str] = []  # in the order in which they were delivered
        self.thread = EngineThread(engine, self._deliver)

    def _deliver(self, plan: StepPlan, outcome: Outcome) -> None:
        is_result = isinstance(outcome, StepResult)
        assert not is_result or outcome.step == plan.step
        self.outcomes.append(str(plan.step if is_result else outcome))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - another thread makes it true
                await asyncio.sleep(0.001)

    async def until_ended(self) -> None:
        await self.until(lambda: not self.thread._thread.is_alive())
        await asyncio.sleep(0)


def start(engine: Engine, count: int) -> Run:
    run = Run(engine)
    for step in range(1, count + 1):
        run.thread.put(StepPlan(step))
    return run


async def test_one_step_is_launched_ahead_and_no_more() -> None:
    engine = ScriptedEngine()
    run = start(engine, 4)
    for step in (1, 2, 3):
        await run.until(lambda: len(engine.steps) == step + 1)  # noqa: B023 - awaited here
        await asyncio.sleep(0.01)
        assert sorted(engine.steps) == list(range(1, step + 2))
        assert run.thread.step == step
        engine.steps[step].computed.set()
    engine.steps[4].computed.set()
    await run.until(lambda: len(run.outcomes) == 4)
    assert run.outcomes == ["1", "2", "3", "4"]
    assert engine.unfinished == [0, 1, 1, 1]
    assert run.thread.step == 0
    await run.thread.stop()


async def test_a_plan_that_comes_late_is_launched_when_it_comes() -> None:
    engine = ScriptedEngine()
    run = start(engine, 1)
    await run.until(lambda: 1 in engine.steps)
    run.thread.put(StepPlan(2))
    await run.until(lambda: 2 in engine.steps)
    assert not engine.steps[1].finished
    for step in (2, 1):  # a device does not end them in this order: then the first is waited for
        engine.steps[step].computed.set()
    await run.until(lambda: len(run.outcomes) == 2)
    assert run.outcomes == ["1", "2"]
    await run.thread.stop()


async def test_what_is_computed_at_once_waits_for_the_step_before() -> None:
    engine = ScriptedEngine(at_once=(2, 3))
    run = start(engine, 3)
    await run.until(lambda: len(engine.unfinished) == 2)
    assert run.outcomes == []
    engine.steps[1].computed.set()
    await run.until(lambda: len(run.outcomes) == 3)
    assert run.outcomes == ["1", "2", "3"]
    await run.thread.stop()


async def test_a_launch_that_fails_is_told_behind_the_step_before_and_is_the_last() -> None:
    engine = ScriptedEngine(fails=(2,))
    run = start(engine, 3)
    await run.until(lambda: len(engine.unfinished) == 2)
    assert run.outcomes == []
    engine.steps[1].computed.set()
    await run.until_ended()
    assert run.outcomes == ["1", "launch 2"]
    assert len(engine.unfinished) == 2
    await run.thread.stop()


async def test_a_step_that_fails_is_the_last_though_the_next_is_launched() -> None:
    engine = ScriptedEngine(breaks=(1,))
    run = start(engine, 3)
    await run.until(lambda: 2 in engine.steps)
    engine.steps[1].computed.set()
    await run.until_ended()
    assert run.outcomes == ["step 1"]
    assert sorted(engine.steps) == [1, 2]
    engine.steps[2].computed.set()
    await run.thread.stop()


async def test_stop_ends_behind_what_is_launched() -> None:
    engine = ScriptedEngine()
    run = start(engine, 5)
    await run.until(lambda: 2 in engine.steps)
    stopping = asyncio.gather(run.thread.stop())
    await asyncio.sleep(0.02)
    assert not stopping.done()
    for step in (1, 2):
        engine.steps[step].computed.set()
    async with asyncio.timeout(10):
        await stopping
    assert run.outcomes == ["1", "2"]
    assert sorted(engine.steps) == [1, 2]


async def test_an_engine_that_computes_at_once_needs_no_second_thread() -> None:
    engine = SimulatedEngine(CAPACITY, step_seconds=0.001, token_seconds=0.0)
    before = threading.active_count()
    run = start(engine, 5)
    await run.until(lambda: len(run.outcomes) == 5)
    assert run.outcomes == ["1", "2", "3", "4", "5"]
    assert threading.active_count() == before + 1
    await run.thread.stop()


async def test_plans_are_not_hoarded() -> None:
    engine = ScriptedEngine()
    run = start(engine, 2)
    await run.until(lambda: 2 in engine.steps)
    for step in range(3, 3 + MAX_PLANS):
        run.thread.put(StepPlan(step))
    with pytest.raises(queue.Full):
        run.thread.put(StepPlan(3 + MAX_PLANS))
    for each in engine.steps.values():
        each.computed.set()
    await run.thread.stop()
