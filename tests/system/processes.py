"""Processes of a pool that can be killed, paused and cut off, and what is between them and Redis.

A call to the bus is one round trip. On its way there or back its connection may break: then the
caller repeats it, as the real bus does, while what it had sent was executed, or not, or lands late.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from common import bus
from common.bus import BusError, Commit, Lease, Outcome, UnavailableError
from common.memory_bus import MemoryBus
from common.messages import Control, GatewayId, Notice, Submit, Subscribed, WorkerHello
from tests.system.faulty_server import FaultyServer, Note

T = TypeVar("T")

GIVE_UP_SECONDS = 10.0  # as the real bus, where a client waits
LATE_SECONDS = (0.1, 1.0, 5.0)  # after which what was sent has landed, or never will
LANDING = {"lease_leave", "register", "commit", "beat_gateway", "leave_gateway"}


class Process:
    """A task with a bus of its own. Paused, it gets no answer, and hears of no timeout either."""

    def __init__(
        self,
        name: str,
        server: FaultyServer,
        rng: random.Random,
        note: Note,
        spawn: Callable[[Awaitable[Any]], None],
    ) -> None:
        """`spawn` runs what goes on without the process."""
        self.name = name
        self.note = note
        self.link = Link(self, server, rng, spawn)
        self.bus = FaultyBus(server, rng, self)
        self.task: asyncio.Task[None] | None = None
        self.is_dead = False
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._calls_left: int | None = None  # until it dies
        self._fatal: type | None = None  # of its writes, the one that it dies behind
        self._trap: tuple[type, Callable[[], None]] | None = None

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
        self._fatal = write

    def trap(self, write: type, act: Callable[[], None]) -> None:
        """Do `act` just before it makes such a write, the first of them."""
        self._trap = (write, act)

    async def writes(self, write: bus.Write) -> None:
        if self._trap and self._trap[0] is type(write):
            (_, act), self._trap = self._trap, None
            act()
            await self.gate()

    def has_written(self, write: bus.Write) -> None:
        if self._fatal is type(write):
            self.die()
            raise asyncio.CancelledError

    def spare(self) -> None:
        """From now on nothing is done to it."""
        self._calls_left = self._fatal = self._trap = None
        self.resume()

    def end(self) -> None:
        """As by SIGTERM: it may say its last words."""
        self.note(self.name, "is told to end")
        assert self.task is not None
        self.task.cancel()

    def die(self) -> None:
        """As by kill -9: wherever it waits, it makes no call any more."""
        self.note(self.name, "dies")
        self.vanish()

    def vanish(self) -> None:
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
        if was_cancelled or self.is_dead:
            raise asyncio.CancelledError

    def is_at_its_last_call(self) -> bool:
        if self._calls_left is None:
            return False
        self._calls_left -= 1
        return self._calls_left < 0


class Link:
    """The connections of a process: how long a call takes, and whether it is answered."""

    def __init__(
        self,
        process: Process,
        server: FaultyServer,
        rng: random.Random,
        spawn: Callable[[Awaitable[Any]], None],
    ) -> None:
        self.process = process
        self.server = server
        self.latency = 0.0  # seconds that a way takes at most
        self.losses = 0.0  # share of calls whose answer is lost
        self.lates = 0.0  # share of writes that land late, when they were repeated already
        self._rng = rng
        self._spawn = spawn
        self._serial = 0  # of the connection, in this partition or that
        self._stands = asyncio.Event()
        self._stands.set()

    @property
    def connection(self) -> tuple[int, int]:
        return self._serial, self.server.crashes

    def cut(self) -> None:
        self._serial += 1
        self._stands.clear()

    def mend(self) -> None:
        self._stands.set()

    async def call(self, name: str, act: Callable[[], Awaitable[T]], *, lands: bool) -> T:
        """What `act` answers, once an answer comes through."""
        process, rng = self.process, self._rng
        while True:
            await process.gate()
            await self._connect()
            connection = self.connection
            if process.is_at_its_last_call():
                self._may_land(act, lands=lands, share=0.5)
                process.die()
                raise asyncio.CancelledError
            await self._travel()
            if connection != self.connection:
                self._may_land(act, lands=lands, share=0.5)
            elif not self._may_land(act, lands=lands, share=self.lates):
                process.note(process.name, name)
                answer = await act()
                self._note_refusal(answer)
                await self._travel()
                await process.gate()
                if connection == self.connection and rng.random() >= self.losses:
                    return answer
            process.note(process.name, f"{name} had no answer")
            await asyncio.sleep(rng.choice((0.0, 0.05, 0.1, 1.0)))

    def _note_refusal(self, answer: object, kind: str = "") -> None:
        """Somebody else was faster."""
        if answer in (Commit.CLOSED, Commit.DUPLICATE):
            self.process.note(self.process.name, f"{kind}commit is {answer}")
        elif isinstance(answer, list) and Outcome.FENCED in answer:
            self.process.note(self.process.name, f"{kind}write is fenced")

    async def _connect(self) -> None:
        while not (self._stands.is_set() and self.server.is_up.is_set()):
            await self._stands.wait()
            await self.server.is_up.wait()
            await asyncio.sleep(self._rng.random())  # until it tries again

    async def _travel(self) -> None:
        if self.latency:
            await asyncio.sleep(self.latency * self._rng.random())

    def _may_land(self, act: Callable[[], Awaitable[T]], *, lands: bool, share: float) -> bool:
        """What was sent lands at some time, and nobody hears the answer."""
        if not lands or self._rng.random() >= share:
            return False

        crashes = self.server.crashes

        async def land() -> None:
            await asyncio.sleep(self._rng.choice(LATE_SECONDS) * self._rng.random())
            if crashes != self.server.crashes:
                return
            self.process.note(self.process.name, "lands late")
            with contextlib.suppress(asyncio.CancelledError, BusError):  # it dies of it
                self._note_refusal(await act(), "late ")

        self._spawn(land())
        return True


class FaultyBus:
    """`MemoryBus` for a process, over its link."""

    def __init__(self, server: FaultyServer, rng: random.Random, process: Process) -> None:
        self.server = server
        self.is_mute = False  # its beats do not arrive, and it does not know
        self._bus = MemoryBus(server)
        self._rng = rng
        self._process = process
        self._link = process.link

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """Whatever has nothing special about it."""
        act, lands = getattr(self._bus, name), name in LANDING

        async def call(*args: Any, **named: Any) -> Any:
            return await self._link.call(name, lambda: act(*args, **named), lands=lands)

        self.__dict__[name] = call
        return call

    async def write(self, epoch: int, writes: Sequence[bus.Write]) -> list[Outcome]:
        """One round trip; the server, or the process, may die between any two of them."""
        if not writes:
            return []

        async def act() -> list[Outcome]:
            crashes, outcomes = self.server.crashes, []
            for write in writes:
                if isinstance(write, bus.CloseLog):  # what is in flight lands at the last moment
                    await asyncio.sleep(self._rng.choice((0.0, 0.03)))
                await self._process.writes(write)
                if self.server.crashes != crashes:
                    break
                outcomes += await self._bus.write(epoch, [write])
                self._process.has_written(write)
            return outcomes

        names = ",".join(type(write).__name__ for write in writes)
        return await self._link.call(f"write {names}", act, lands=True)

    async def write_and_wait(
        self, epoch: int, writes: Sequence[bus.Write], cursors: bus.Cursors, block_seconds: float
    ) -> tuple[list[Outcome], bus.News]:
        outcomes = await self.write(epoch, writes)
        return outcomes, await self.news(cursors, block_seconds)

    async def beat(self, hello: WorkerHello) -> bool:
        if self.is_mute:
            return True
        return await self._link.call("beat", lambda: self._bus.beat(hello), lands=True)

    async def lease_take(self, holder: str, seen: Lease) -> Lease | None:
        async def act() -> Lease | None:
            taken = await self._bus.lease_take(holder, seen)
            if taken:
                self.server.take_over()
            return taken

        return await self._link.call("lease_take", act, lands=True)

    async def lease_renew(self, lease: Lease) -> Lease | None:
        if self.is_mute:
            return replace(lease, beat=lease.beat + 1)
        return await self._link.call(
            "lease_renew", lambda: self._bus.lease_renew(lease), lands=True
        )

    async def submit(self, submit: Submit) -> None:
        await self._answered("submit", lambda: self._bus.submit(submit))

    async def control(self, control: Control) -> None:
        await self._answered(f"control {control.kind}", lambda: self._bus.control(control))

    async def _answered(self, name: str, act: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await self._link.call(name, act, lands=True)
        except TimeoutError:
            raise UnavailableError(f"no answer within {GIVE_UP_SECONDS:.0f} s") from None

    async def notices(self, gateway: GatewayId) -> AsyncIterator[Notice]:
        async for notice in self._bus.notices(gateway):
            await self._process.gate()
            if isinstance(notice, Subscribed):
                self._process.note(self._process.name, "subscribed")
            yield notice
