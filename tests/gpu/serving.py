"""Requests through the scheduler's core and the engine's thread, as in a worker without a bus."""

import asyncio
from collections.abc import Callable
from typing import Any

from common.messages import RequestId, StepPlan
from gpu_worker.engine_thread import EngineThread, Outcome
from gpu_worker.model_engine import ModelEngine
from scheduler.core.request import Request
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.core.strategies import Choices


class Serving:
    """`on_step` is called after each step: it may add requests, and take some out."""

    def __init__(
        self,
        engine: ModelEngine,
        on_step: Callable[["Serving"], None] = lambda _: None,
        *,
        num_blocks: int = 0,
        max_running: int = 0,
        **choices: Any,
    ) -> None:
        capacity = engine.capacity
        limits = Limits(
            max_step_tokens=capacity.max_step_tokens,
            max_running=max_running or capacity.max_rows,
            depth=1,
            max_request_tokens=capacity.max_request_tokens,
            max_rows=capacity.max_rows,
        )
        blocks = num_blocks or capacity.num_blocks
        memory = Memory(blocks, capacity.block_size, capacity.num_host_blocks)
        self.scheduler = Scheduler(limits, memory, Choices(**choices), hash_key=b"key")
        self.ended: dict[RequestId, Request] = {}
        self.num_steps = 0
        self._engine = engine
        self._on_step = on_step
        self._num_in_flight = 0
        self._error: Exception | None = None

    def run(self, requests: list[Request], seconds: float) -> None:
        """Until all have ended. Raises what a step raised, and TimeoutError after `seconds`."""
        for request in requests:
            self.scheduler.add(request)
        asyncio.run(self._run(seconds))

    async def _run(self, seconds: float) -> None:
        self._over = asyncio.Event()
        self._thread = EngineThread(self._engine, self._deliver)
        try:
            async with asyncio.timeout(seconds):
                self._plan()
                await self._over.wait()
        finally:
            await self._thread.stop()
        if self._error:
            raise self._error

    def _deliver(self, _plan: StepPlan, outcome: Outcome) -> None:
        try:
            self._take_in(outcome)
        except Exception as error:  # noqa: BLE001 - raised by `run`
            self._error = error
            self._over.set()

    def _take_in(self, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            raise outcome
        self._num_in_flight -= 1
        self.num_steps += 1
        self.scheduler.apply(outcome)
        for request in self.scheduler.take_ended():
            self.ended[request.id] = request
        self._on_step(self)
        self._plan()

    def _plan(self) -> None:
        while plan := self.scheduler.schedule():
            self._num_in_flight += 1
            self._thread.put(plan)
        if not self._num_in_flight and not self.scheduler.requests:
            self._over.set()
