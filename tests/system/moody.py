"""An engine that never repeats itself, and a server that keeps books: what is lost stays lost."""

import asyncio
import random
from collections import deque
from typing import Any

from common import entries
from common.bus import EntryId, Fields
from common.memory_server import MemoryServer
from common.messages import FinishReason, RequestId, StepPlan, StepResult
from gpu_worker.engine import Engine
from gpu_worker.engine_thread import Deliver
from gpu_worker.engine_thread import Outcome as StepOutcome
from gpu_worker.simulated import SimulatedEngine

NUM_TOKENS = 100  # different ones


class Ledger(MemoryServer):
    """Notes what was committed: from then on a token exists, and none may come twice."""

    def __init__(self) -> None:
        super().__init__()
        self.committed: dict[RequestId, dict[int, int]] = {}

    def add(self, key: str, entry: EntryId, fields: Fields) -> bool:
        added = super().add(key, entry, fields)
        if added and b"result" in fields:
            for sampled in entries.read_result(fields).sampled:
                tokens = self.committed.setdefault(sampled.request_id, {})
                assert sampled.position not in tokens, f"{sampled} comes twice"
                tokens[sampled.position] = sampled.token
        return added


class MoodyEngine(SimulatedEngine):
    """Never says the same twice, so that a token that was lost is not made good unnoticed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._end_tokens: dict[RequestId, tuple[int, ...]] = {}
        self.rng = random.Random(0)

    def execute(self, plan: StepPlan) -> StepResult:
        for row in plan.admitted:
            self._end_tokens[row.request_id] = row.ending.end_tokens
        result = super().execute(plan)
        for sampled in result.sampled:
            sampled.token = self.rng.randrange(NUM_TOKENS)
            if sampled.token in self._end_tokens[sampled.request_id]:
                sampled.finish = FinishReason.STOP
                self._rows[sampled.request_id].has_ended = True
        return result


class LoopRunner:
    """The engine on the event loop, where a step takes virtual time."""

    def __init__(self, engine: Engine, deliver: Deliver, step_seconds: float) -> None:
        self.step = 0
        self._engine = engine
        self._deliver = deliver
        self._step_seconds = step_seconds
        self._plans: deque[StepPlan] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def put(self, plan: StepPlan) -> None:
        self._plans.append(plan)
        self._next()

    async def stop(self) -> None:
        self._plans.clear()
        while self._timer is not None:  # noqa: ASYNC110 - as the thread is waited for
            await asyncio.sleep(self._step_seconds)

    def _next(self) -> None:
        if self._timer is None and self._plans:
            plan = self._plans.popleft()
            self.step = plan.step
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._step_seconds, self._execute, plan)

    def _execute(self, plan: StepPlan) -> None:
        self.step, self._timer = 0, None
        outcome: StepOutcome
        try:
            outcome = self._engine.execute(plan)
        except Exception as error:  # noqa: BLE001 - as the real one
            outcome = error
            self._plans.clear()
            self.put = lambda plan: None  # type: ignore[method-assign]
        self._deliver(plan, outcome)
        self._next()
