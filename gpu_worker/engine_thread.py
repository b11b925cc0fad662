"""The engine on a thread of its own: plans in, results out, one step launched ahead of the other.

While a device computes step N, step N+1 is launched as soon as its plan is there, so that the
device has no gap between them. A second thread does nothing but wait for the device, and tells the
engine's thread through the queue that plans come by: no one else touches the engine.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from common.messages import StepPlan, StepResult
from gpu_worker.engine import Engine, Launched

Outcome = StepResult | Exception
Deliver = Callable[[StepPlan, Outcome], None]

MAX_PLANS = 16  # read ahead; a scheduler plans fewer
MAX_LAUNCHED = 2  # one that the device computes, and one behind it
LAST_STEP_SECONDS = 60.0  # a step that runs longer when the worker starts over is hopeless


class Runner(Protocol):
    """Executes plans in order; `deliver` is called on the loop for each, until one has failed."""

    @property
    def step(self) -> int:
        """Computed now; 0: none."""
        ...

    def put(self, plan: StepPlan) -> None: ...

    async def stop(self) -> None:
        """End after the steps that are computed now; plans behind them are dropped."""
        ...


class EngineThread:
    def __init__(self, engine: Engine, deliver: Deliver) -> None:
        self.step = 0
        self._engine = engine
        self._deliver = deliver
        self._news: queue.SimpleQueue[StepPlan | Launched | None] = queue.SimpleQueue()
        self._plans: deque[StepPlan] = deque()  # to be launched
        self._launched: deque[tuple[StepPlan, Launched]] = deque()  # to be finished
        self._waiter = _Waiter(self._news)
        self._is_stopping = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._compute, name="engine", daemon=True)
        self._thread.start()

    def put(self, plan: StepPlan) -> None:
        if self._news.qsize() + len(self._plans) >= MAX_PLANS:
            raise queue.Full
        self._news.put(plan)

    async def stop(self) -> None:
        self._is_stopping = True
        self._news.put(None)
        started = time.monotonic()
        while self._thread.is_alive():
            await asyncio.sleep(0.01)
            if time.monotonic() - started > LAST_STEP_SECONDS:
                raise RuntimeError("the engine does not end its step")

    def _compute(self) -> None:
        """Launch and finish, with no turn of the loop in between.

        A step that fails is the last: no later one may be committed without it.
        """
        while not self._is_stopping or self._launched:
            news = self._news.get()
            if isinstance(news, StepPlan):
                self._plans.append(news)
            elif news is not None and not self._finish():
                break
            if not self._advance():
                break
        self._waiter.stop()

    def _advance(self) -> bool:
        """Launch what may be, and finish what was computed at once; whether no step failed."""
        while True:
            if self._launched and self._launched[0][1].is_done:
                if not self._finish():
                    return False
            elif self._may_launch():
                self._launch(self._plans.popleft())
            else:
                return True

    def _may_launch(self) -> bool:
        """A launch that failed is the second, or the oldest and done: nothing comes behind it."""
        has_room = len(self._launched) < MAX_LAUNCHED
        return has_room and bool(self._plans) and not self._is_stopping

    def _launch(self, plan: StepPlan) -> None:
        launched: Launched
        self.step = self.step or plan.step
        try:
            launched = self._engine.launch(plan)
        except Exception as error:  # noqa: BLE001 - told to the loop, when its turn comes
            launched = _Failed(error)
        self._launched.append((plan, launched))
        if not launched.is_done:
            self._waiter.put(launched)

    def _finish(self) -> bool:
        """Deliver the oldest step that is launched; whether it did not fail."""
        plan, launched = self._launched.popleft()
        outcome: Outcome
        try:
            outcome = launched.finish()
        except Exception as error:  # noqa: BLE001 - told to the loop, which raises or reports it
            outcome = error
        self.step = self._launched[0][0].step if self._launched else 0
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits for it
            self._loop.call_soon_threadsafe(self._deliver, plan, outcome)
        return not isinstance(outcome, Exception)


@dataclass(frozen=True, slots=True)
class _Failed:
    """A step whose launch failed; one that was launched before may still be on its way."""

    error: Exception
    is_done: bool = True

    def wait(self) -> None: ...

    def finish(self) -> StepResult:
        raise self.error


class _Waiter:
    """A thread, from the first step on that has to be waited for; puts what is done into `news`."""

    def __init__(self, news: "queue.SimpleQueue[StepPlan | Launched | None]") -> None:
        self._news = news
        self._steps: queue.SimpleQueue[Launched | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, launched: Launched) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait, name="waiter", daemon=True)
            self._thread.start()
        self._steps.put(launched)

    def stop(self) -> None:
        self._steps.put(None)

    def _wait(self) -> None:
        while (launched := self._steps.get()) is not None:
            with contextlib.suppress(Exception):  # `finish` raises it again, where it is told
                launched.wait()
            self._news.put(launched)
