"""The engine on a thread of its own: plans in, results out."""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

from common.messages import StepPlan, StepResult
from gpu_worker.engine import Engine

Outcome = StepResult | Exception
Deliver = Callable[[StepPlan, Outcome], None]

MAX_PLANS = 16  # read ahead; a scheduler plans fewer
LAST_STEP_SECONDS = 60.0  # a step that runs longer when the worker starts over is hopeless


class Runner(Protocol):
    """Executes plans in order; `deliver` is called on the loop for each, until one has failed."""

    @property
    def step(self) -> int:
        """Computed now; 0: none."""
        ...

    def put(self, plan: StepPlan) -> None: ...

    async def stop(self) -> None:
        """End after the step that is computed now; plans behind it are dropped."""
        ...


class EngineThread:
    def __init__(self, engine: Engine, deliver: Deliver) -> None:
        self.step = 0
        self._engine = engine
        self._deliver = deliver
        self._plans: queue.Queue[StepPlan | None] = queue.Queue(MAX_PLANS)
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._compute, args=(loop,), name="engine", daemon=True
        )
        self._thread.start()

    def put(self, plan: StepPlan) -> None:
        self._plans.put_nowait(plan)

    async def stop(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._plans.get_nowait()
        self._plans.put_nowait(None)
        started = time.monotonic()
        while self._thread.is_alive():
            await asyncio.sleep(0.01)
            if time.monotonic() - started > LAST_STEP_SECONDS:
                raise RuntimeError("the engine does not end its step")

    def _compute(self, loop: asyncio.AbstractEventLoop) -> None:
        """One plan after the other, with no turn of the loop in between.

        A step that fails is the last: no later one may be committed without it.
        """
        while (plan := self._plans.get()) is not None:
            self.step = plan.step
            outcome: Outcome
            try:
                outcome = self._engine.execute(plan)
            except Exception as error:  # noqa: BLE001 - told to the loop, which raises or reports it
                outcome = error
            self.step = 0
            with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits for it
                loop.call_soon_threadsafe(self._deliver, plan, outcome)
            if isinstance(outcome, Exception):
                return
