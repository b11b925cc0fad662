"""Processes of a pool that can be killed, paused and cut short at any call to the bus."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from common import bus
from common.bus import Commit, Lease, Log, News, Outcome, Plans
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from common.messages import (
    Control,
    GatewayId,
    Journal,
    Notice,
    RequestId,
    StepResult,
    Submit,
    TokenBatch,
    WorkerHello,
    WorkerId,
)

T = TypeVar("T")


class Process:
    """A task with a bus of its own. Paused, it gets no answer, and hears of no timeout either."""

    def __init__(self, name: str, server: MemoryServer, rng: random.Random) -> None:
        self.name = name
        self.latency = 0.0  # seconds that a call takes at most, there and back
        self._rng = rng
        self.bus = FaultyBus(server, rng, self)
        self.task: asyncio.Task[None] | None = None
        self.is_dead = False
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._calls_left: int | None = None  # until it dies
        self._last_write: type | None = None

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        async def live() -> None:
            await work()

        self.task = asyncio.get_running_loop().create_task(live(), name=self.name)

    @property
    def is_up(self) -> bool:
        return self.task is not None and not self.task.done() and not self.is_dead

    def pause(self) -> None:
        self._goes_on.clear()

    def resume(self) -> None:
        self._goes_on.set()

    def die_after(self, calls: int) -> None:
        self._calls_left = calls

    def die_behind(self, write: type) -> None:
        """Once it has made such a write, and before the next."""
        self._last_write = write

    def has_written(self, write: bus.Write) -> None:
        if self._last_write is type(write):
            self.die()
            raise asyncio.CancelledError

    def spare(self) -> None:
        """From now on nothing is done to it."""
        self._calls_left = self._last_write = None
        self.resume()

    def die(self) -> None:
        self.is_dead = True
        self._goes_on.set()
        assert self.task is not None
        self.task.cancel()

    async def ended(self) -> None:
        """Raises what it died of, unless it was killed."""
        assert self.task is not None
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def gate(self) -> None:
        """Before and behind every call."""
        was_cancelled = False
        while not self._goes_on.is_set():
            try:
                await self._goes_on.wait()
            except asyncio.CancelledError:
                was_cancelled = True  # by a timeout, which a paused process does not notice
        if was_cancelled:
            raise asyncio.CancelledError
        if self.is_dead:
            raise asyncio.CancelledError

    async def call(self, act: Callable[[], Awaitable[T]]) -> T:
        await self.gate()
        if self._calls_left is not None:
            self._calls_left -= 1
            if self._calls_left < 0:
                self.die()
                raise asyncio.CancelledError
        await asyncio.sleep(self.latency * self._rng.random())
        answer = await act()
        await asyncio.sleep(self.latency * self._rng.random())
        await self.gate()
        return answer


class FaultyBus:
    """`MemoryBus` for a process that may die between any two writes; answers get lost at times.

    An answer that is lost means that the call is made twice.
    """

    def __init__(self, server: MemoryServer, rng: random.Random, process: Process) -> None:
        self.server = server
        self.mute = False  # its beats do not arrive
        self.repeats = 0.03  # share of calls whose answer is lost
        self._bus = MemoryBus(server)
        self._rng = rng
        self._process = process

    async def write(self, epoch: int, writes: Sequence[bus.Write]) -> list[Outcome]:
        outcomes = []
        for write in writes:
            if isinstance(write, bus.CloseLog):  # what is in flight lands at the last moment
                await asyncio.sleep(self._rng.choice((0.0, 0.03)))
            outcomes += await self._twice(lambda write=write: self._bus.write(epoch, [write]))  # type: ignore[misc]
            self._process.has_written(write)
        return outcomes

    async def lease(self) -> Lease:
        return await self._once(self._bus.lease)

    async def lease_take(self, holder: str, seen: Lease) -> Lease | None:
        return await self._twice(lambda: self._bus.lease_take(holder, seen))

    async def lease_renew(self, lease: Lease) -> Lease | None:
        return await self._twice(lambda: self._bus.lease_renew(lease))

    async def news(self, cursors: bus.Cursors, block_seconds: float) -> News:
        return await self._once(lambda: self._bus.news(cursors, block_seconds))

    async def owners(self) -> dict[RequestId, WorkerId]:
        return await self._once(self._bus.owners)

    async def suspects(self) -> dict[RequestId, int]:
        return await self._once(self._bus.suspects)

    async def shares(self) -> dict[str, bus.Share]:
        return await self._once(self._bus.shares)

    async def journals(self, requests: Sequence[RequestId]) -> list[Journal]:
        return await self._once(lambda: self._bus.journals(requests))

    async def unexpired_journals(self) -> list[RequestId]:
        return await self._once(self._bus.unexpired_journals)

    async def workers(self) -> dict[WorkerId, WorkerHello]:
        return await self._once(self._bus.workers)

    async def gateways(self) -> dict[GatewayId, int]:
        return await self._once(self._bus.gateways)

    async def register(self, hello: WorkerHello) -> None:
        await self._twice(lambda: self._bus.register(hello))

    async def beat(self, hello: WorkerHello) -> bool:
        if self.mute:
            return True
        return await self._twice(lambda: self._bus.beat(hello))

    async def read_plans(self, worker: WorkerId, after: int, block_seconds: float) -> Plans:
        return await self._once(lambda: self._bus.read_plans(worker, after, block_seconds))

    async def commit(
        self, worker: WorkerId, result: StepResult, notices: Mapping[GatewayId, TokenBatch]
    ) -> Commit:
        return await self._twice(lambda: self._bus.commit(worker, result, notices))

    async def submit(self, submit: Submit) -> None:
        await self._twice(lambda: self._bus.submit(submit))

    async def control(self, control: Control) -> None:
        await self._twice(lambda: self._bus.control(control))

    async def beat_gateway(self, gateway: GatewayId, beat: int) -> None:
        await self._once(lambda: self._bus.beat_gateway(gateway, beat))

    async def owner(self, request: RequestId) -> WorkerId | None:
        return await self._once(lambda: self._bus.owner(request))

    async def read_log(self, worker: WorkerId, after: int) -> Log:
        return await self._once(lambda: self._bus.read_log(worker, after))

    async def journal(self, request: RequestId) -> Journal:
        return await self._once(lambda: self._bus.journal(request))

    async def notices(self, gateway: GatewayId) -> AsyncIterator[Notice]:
        async for notice in self._bus.notices(gateway):
            await self._process.gate()
            yield notice

    async def _once(self, act: Callable[[], Awaitable[T]]) -> T:
        return await self._process.call(act)

    async def _twice(self, act: Callable[[], Awaitable[T]]) -> T:
        answer = await self._process.call(act)
        while self._rng.random() < self.repeats:
            await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.01, 0.1)))
            answer = await self._process.call(act)
        return answer
