"""A whole pool in one process: schedulers, workers with the simulated engine, and a client.

The client speaks the gateway's side of the bus, and collects what it is told, position by position.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from common.config import SchedulerSettings
from common.messages import (
    Control,
    ControlKind,
    Ended,
    Ending,
    GatewayId,
    Journal,
    RequestId,
    Sampling,
    StepPlan,
    StepResult,
    SubmissionId,
    Submit,
    Subscribed,
    TokenBatch,
    request_id,
)
from gpu_worker.engine import Capacity
from gpu_worker.service import WorkerService
from gpu_worker.simulated import SimulatedEngine, truth
from scheduler.service import SchedulerService

FAST = SchedulerSettings(lease_seconds=0.4, gateway_grace_seconds=0.4, journal_seconds=30.0)
GATEWAY = GatewayId("gw-test")


def engine(
    kind: type[SimulatedEngine] | None = None,
    num_blocks: int = 256,
    block_size: int = 16,
    step_seconds: float = 0.001,
    **changes: Any,
) -> SimulatedEngine:
    capacity = {
        "model": "m",
        "device": "simulated",
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_request_tokens": 2048,
        "max_step_tokens": 512,
        "max_rows": 64,
    }
    return (kind or SimulatedEngine)(Capacity(**{**capacity, **changes}), step_seconds, 0.0)


class PoisonError(Exception):
    """What a request does to an engine that has a bug."""


class FragileEngine(SimulatedEngine):
    """Breaks in a step that computes the answer's `position` of a prompt that starts with 666."""

    position = 3

    def execute(self, plan: StepPlan) -> StepResult:
        for row in plan.admitted:
            if row.tokens[0] == 666:
                self._poison[row.request_id] = row.num_prompt + self.position
        for chunk in plan.chunks:
            if chunk.start + chunk.count > self._poison.get(chunk.request_id, 1 << 60):
                raise PoisonError
        return super().execute(plan)

    def reset(self) -> None:
        super().reset()
        self._poison: dict[RequestId, int] = {}


@dataclass
class Pool:
    """Tasks of a pool; `kill` ends one without a word, as a crash would."""

    make_bus: Callable[[], Any]
    settings: SchedulerSettings = FAST
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    services: dict[str, WorkerService | SchedulerService] = field(default_factory=dict)

    def scheduler(self, name: str = "s1") -> None:
        self.services[name] = service = SchedulerService(self.make_bus(), self.settings, name)
        self.tasks[name] = asyncio.get_running_loop().create_task(service.run(), name=name)

    def worker(self, name: str = "w1", **changes: Any) -> WorkerService:
        self.services[name] = service = WorkerService(
            self.make_bus(), engine(**changes), name, 0.1, drain_seconds=3.0
        )
        self.tasks[name] = asyncio.get_running_loop().create_task(service.run(), name=name)
        return service

    async def kill(self, name: str) -> None:
        task = self.tasks.pop(name)
        del self.services[name]
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def stop(self) -> None:
        for name in list(self.tasks):
            await self.kill(name)


class Client:
    """What a gateway would be told, kept: only the next position counts."""

    def __init__(self, bus: Any, gateway: GatewayId = GATEWAY) -> None:
        self.bus = bus
        self.gateway = gateway
        self.tokens: dict[RequestId, list[int]] = {}
        self.ended: dict[RequestId, Ended] = {}
        self.gaps: set[RequestId] = set()
        self.changed = asyncio.Condition()
        self.serial = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["Client"]:
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._listen(ready)), loop.create_task(self._beat())]
        await ready.wait()
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def submit(self, prompt: tuple[int, ...], max_tokens: int, **changes: Any) -> RequestId:
        submission = SubmissionId(f"r{self.serial:04d}")
        self.serial += 1
        fields: dict[str, Any] = {
            "submission_id": submission,
            "prompts": (prompt,),
            "n": 1,
            "sampling": Sampling(seed=1),
            "ending": Ending(max_tokens=max_tokens),
            "gateway": self.gateway,
        }
        await self.bus.submit(Submit(**{**fields, **changes}))
        return request_id(submission, 0)

    async def cancel(self, request: RequestId) -> None:
        await self.bus.control(Control(ControlKind.CANCEL, request))

    async def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        async with asyncio.timeout(seconds), self.changed:
            await self.changed.wait_for(condition)

    async def answer(self, request: RequestId, seconds: float = 10.0) -> tuple[list[int], Ended]:
        """The tokens of the journal and the end, once told."""
        await self.until(lambda: request in self.ended, seconds)
        journal = await self.bus.journal(request)
        assert journal.end == self.ended[request]
        told = self.tokens.get(request, [])
        kept = journal.end.kept
        assert request in self.gaps or told[:kept] == list(journal.tokens[:kept])
        return list(journal.tokens), journal.end

    async def finished(self, request: RequestId) -> Journal:
        """The journal, once it has an end, told or not."""
        async with asyncio.timeout(10):
            while not (journal := await self.bus.journal(request)).end:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return journal

    async def _listen(self, ready: asyncio.Event) -> None:
        async for notice in self.bus.notices(self.gateway):
            async with self.changed:
                match notice:
                    case Subscribed():
                        ready.set()
                    case TokenBatch(sampled):
                        for token in sampled:
                            known = self.tokens.setdefault(token.request_id, [])
                            if token.position == len(known):
                                known.append(token.token)
                            elif token.position > len(known):
                                self.gaps.add(token.request_id)
                    case Ended(request):
                        assert self.ended.get(request, notice) == notice
                        self.ended[request] = notice
                self.changed.notify_all()

    async def _beat(self) -> None:
        beat = 0
        while True:
            beat += 1
            await self.bus.beat_gateway(self.gateway, beat)
            await asyncio.sleep(0.1)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - nothing tells when it comes true
            await asyncio.sleep(0.02)


def expected(prompt: tuple[int, ...], count: int) -> list[int]:
    return [truth(prompt, position) for position in range(count)]
