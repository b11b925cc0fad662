"""A pool whose processes die, stall and come back as a seed says, and the clients that use it."""

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from common import bus
from common.bus import AddTimeline, SetStatus
from common.memory_bus import MemoryBus
from common.messages import (
    Control,
    ControlKind,
    Ended,
    Ending,
    FinishReason,
    GatewayId,
    Sampling,
    SubmissionId,
    Submit,
)
from common.metrics import GatewayMetrics
from gateway.answer import Answer, Event
from gateway.token_router import TokenRouter
from gpu_worker.service import WorkerService
from scheduler.service import SchedulerService
from tests.system.moody import Ledger, LoopRunner, MoodyEngine
from tests.system.pool import FAST, engine
from tests.system.processes import Process

SETTINGS = replace(FAST, lease_seconds=0.4, gateway_grace_seconds=0.5)
NUM_SUBMISSIONS = 20
TENANTS = ("alice", "bob")
NUM_FAULTS = 24
WRITES = [write for write in bus.Write.__args__ if write not in {SetStatus, AddTimeline}]
CONTROLS = (
    ControlKind.HOLD,
    ControlKind.RELEASE,
    ControlKind.PRIORITY,
    ControlKind.ATTACH,
    ControlKind.DETACH,
)


@dataclass
class Wish:
    """What one client wants, and what it will do meanwhile."""

    submit: Submit
    leaves_at: int | None = None  # tokens seen, all choices together
    stops_at: int | None = None  # tokens of the first choice
    stop_kept: int = 0  # tokens; 0: it has not asked to stop
    told: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, Ended] = field(default_factory=dict)
    is_accepted: bool = False
    has_left: bool = False

    def is_stopped(self, choice: int) -> bool:
        return choice == 0 and self.stop_kept > 0

    def own_end(self, tokens: Sequence[int]) -> FinishReason | None:
        """How the answer ended by itself; asserts that nothing comes behind that."""
        ending = self.submit.ending
        assert len(tokens) <= ending.max_tokens
        assert not set(tokens[:-1]) & set(ending.end_tokens)
        if tokens and tokens[-1] in ending.end_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(tokens) == ending.max_tokens else None


class Gateway:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.id = GatewayId(process.name)
        faulty: Any = process.bus
        self.router = TokenRouter(faulty, self.id, GatewayMetrics(process.name))
        self.was_away = False  # for so long that its requests may have been cancelled
        self.group = asyncio.TaskGroup()
        process.start(self._run)

    async def _run(self) -> None:
        async with self.group:
            self.group.create_task(self.router.run())
            self.group.create_task(self._beat())

    async def _beat(self) -> None:
        for beat in itertools.count(1):
            await self.process.bus.beat_gateway(self.id, beat)
            await asyncio.sleep(0.1)

    def ask(self, wish: Wish) -> None:
        self.group.create_task(self._client(wish))

    async def _client(self, wish: Wish) -> None:
        async with self.router.open(wish.submit) as answer:
            wish.is_accepted = True
            while not answer.is_over:
                for event in await answer.next(0.5):
                    self._take(wish, answer, event)
                if wish.has_left:
                    return

    def _take(self, wish: Wish, answer: Answer, event: Event) -> None:
        told = wish.told.setdefault(event.choice, [])
        told += event.tokens
        if event.end:
            assert event.choice not in wish.ends, "ended twice"
            wish.ends[event.choice] = event.end
        if event.choice == 0 and wish.stops_at is not None and len(told) >= wish.stops_at:
            wish.stop_kept = wish.stop_kept or max(1, len(told) - 1)
            self.router.stop(answer, 0, wish.stop_kept)
        seen = sum(len(tokens) for tokens in wish.told.values())
        wish.has_left = wish.leaves_at is not None and seen >= wish.leaves_at


class World:
    """One schedule, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.server = Ledger()
        self.bus = MemoryBus(self.server)
        self.serial = itertools.count(1)
        self.processes: list[Process] = []
        self.schedulers: list[Process] = []
        self.workers: dict[Process, WorkerService] = {}
        self.gateways: list[Gateway] = []
        self.wishes: dict[SubmissionId, Wish] = {}
        self.num_losses = 0  # of workers, as far as a leader can tell
        self.latency = self.rng.choice((0.0, 0.001, 0.004))
        self.pace = self.rng.choice((0.3, 1.0, 2.0))  # the smaller, the faster come the faults
        self.step_seconds = self.rng.choice((0.002, 0.01))
        self.small_cache = self.rng.random() < 0.5
        self.settings = replace(
            SETTINGS,
            preemption=self.rng.choice(("recompute", "swap", "never")),
            policy=self.rng.choice(("priority", "fair")),
        )
        self.shared = tuple(self.rng.randrange(500) for _ in range(40))
        losses = self.rng.choice((0.0, 0.0, 0.02, 0.2))
        self.server.copies = lambda _gateway, _notice: (
            self.rng.choice((0, 2)) if self.rng.random() < losses else 1
        )

    # --- Processes --------------------------------------------------------------------------

    def process(self, kind: str) -> Process:
        process = Process(f"{kind}{next(self.serial)}", self.server, self.rng)
        process.latency = self.latency
        self.processes.append(process)
        return process

    def start_scheduler(self) -> None:
        process = self.process("s")
        self.schedulers.append(process)
        faulty: Any = process.bus
        process.start(SchedulerService(faulty, self.settings, process.name).run)

    def start_worker(self) -> None:
        process = self.process("w")
        small: dict[str, Any] = {"num_blocks": 24, "block_size": 8, "max_request_tokens": 160}
        capacity = small if self.small_cache else {}
        faulty: Any = process.bus
        service = WorkerService(
            faulty,
            engine(
                MoodyEngine,
                step_seconds=0.0,
                max_rows=8,
                num_host_blocks=self.rng.choice((0, 8, 64)),
                **capacity,
            ),
            process.name,
            beat_seconds=0.1,
            drain_seconds=2.0,
            runner=lambda engine, deliver: LoopRunner(engine, deliver, self.step_seconds),
        )
        self.workers[process] = service
        process.start(service.run)

    def start_gateway(self) -> None:
        self.gateways.append(Gateway(self.process("g")))

    def up(self, processes: list[Process]) -> list[Process]:
        return [process for process in processes if process.is_up]

    # --- The schedule -----------------------------------------------------------------------

    async def run(self) -> None:
        for start in (self.start_scheduler, self.start_worker, self.start_gateway):
            for _ in range(self.rng.choice((1, 2))):
                start()
        asking = asyncio.get_running_loop().create_task(self._ask())
        for _ in range(NUM_FAULTS):
            await asyncio.sleep(self.pace * self.rng.choice((0.01, 0.05, 0.2, 0.6)))
            self._fault()
        await asking
        await self._calm()

    async def _ask(self) -> None:
        for number in range(NUM_SUBMISSIONS):
            await asyncio.sleep(self.pace * self.rng.random() * 0.5)
            ready = [gateway for gateway in self.gateways if gateway.process.is_up]
            if ready:
                gateway = self.rng.choice(ready)
                wish = self._wish(number, gateway.id)
                self.wishes[wish.submit.submission_id] = wish
                gateway.ask(wish)

    def _wish(self, number: int, gateway: GatewayId) -> Wish:
        rng = self.rng
        shared = self.shared[: rng.choice((0, 0, 10, 40))]
        prompt = (*shared, *(rng.randrange(500) for _ in range(rng.randint(1, 60 - len(shared)))))
        most = rng.choice((1, 30, 90) if self.small_cache else (5, 100, 300))
        ends = tuple(range(5)) if rng.random() < 0.3 else ()
        submit = Submit(
            SubmissionId(f"r{number:02d}"),
            prompts=(prompt, prompt[::-1])[: rng.choice((1, 1, 2))],
            n=rng.choice((1, 1, 2)),
            sampling=Sampling(seed=1),
            ending=Ending(max_tokens=most, end_tokens=ends),
            gateway=gateway,
            deadline_seconds=rng.random() * 2 if rng.random() < 0.1 else None,
            resumable=rng.random() < 0.2,
            tenant=rng.choice(TENANTS),
        )
        wish = Wish(submit)
        if rng.random() < 0.2:
            wish.leaves_at = rng.randint(0, most // 2)
        if rng.random() < 0.3:
            wish.stops_at = rng.randint(1, most // 2 + 1)
        return wish

    def _fault(self) -> None:
        rng = self.rng
        faults: list[tuple[float, Callable[[], None]]] = [
            (3, self._kill),
            (3, self._pause),
            (2, self._stall_and_take_over),
            (2, self._leave),
            (3, self._mute),
            (1, self._resubscribe),
            (2, self._control),
            (2, self._steer),
            (1, self._replace_gateway),
            (3, self._start),
        ]
        weights, actions = zip(*faults, strict=True)
        rng.choices(actions, weights)[0]()

    def _victim(self) -> Process:
        return self.rng.choice(self.up([*self.schedulers, *self.workers]) or self.processes)

    def _kill(self) -> None:
        victim = self._victim()
        self.num_losses += victim in self.workers
        if victim in self.schedulers and self.rng.random() < 0.7:
            victim.die_behind(self.rng.choice(WRITES))
        else:
            victim.die_after(self.rng.choice((0, 1, 3, 10, 60)))

    def _pause(self) -> None:
        if processes := self.up(self.processes):
            self._stall(self.rng.choice(processes), self.rng.choice((0.1, 0.5, 1.0, 2.0)))

    def _stall_and_take_over(self) -> None:
        """Some sleep through a takeover, in the middle of their work."""
        for victim in self.up([*self.schedulers, *self.workers]):
            if self.rng.random() < 0.5:
                self._stall(victim, self.rng.choice((0.6, 1.0, 2.0)))
        self.start_scheduler()

    def _stall(self, victim: Process, seconds: float) -> None:
        self.num_losses += victim in self.workers
        victim.pause()
        for each in self.gateways:
            each.was_away |= each.process is victim and seconds > 0.4
        asyncio.get_running_loop().call_later(seconds, victim.resume)

    def _mute(self) -> None:
        """It works on, and nobody hears that it lives."""
        if workers := self.up(list(self.workers)):
            victim = self.rng.choice(workers)
            self.num_losses += 1
            victim.bus.mute = True
            asyncio.get_running_loop().call_later(1.0, setattr, victim.bus, "mute", False)

    def _leave(self) -> None:
        if workers := self.up(list(self.workers)):
            self.workers[self.rng.choice(workers)].leave()

    def _resubscribe(self) -> None:
        for gateway in self.gateways:
            self.server.resubscribe(gateway.id)

    def _control(self) -> None:
        if self.wishes:
            submission = self.rng.choice(list(self.wishes))
            target = self.rng.choice((submission, f"{submission}.0"))
            kind = self.rng.choice(CONTROLS)
            control = Control(kind, target, gateway=self._viewer(kind), priority=-1)
            asyncio.get_running_loop().create_task(self.bus.control(control))

    def _steer(self) -> None:
        """Something is asked of a tenant or a worker as such."""
        rng = self.rng
        tenant = f"tenant:{rng.choice(TENANTS)}"
        worker = f"worker:{rng.choice([*self.server.hash('workers'), b'nobody']).decode()}"
        control = rng.choice(
            (
                Control(ControlKind.HOLD, tenant),
                Control(ControlKind.PRIORITY, tenant, priority=rng.randint(-1, 1)),
                Control(ControlKind.WEIGHT, tenant, weight=rng.choice((0.5, 3.0))),
                *(Control(ControlKind.DRAIN, target) for target in (tenant, worker)),
                *(Control(ControlKind.RELEASE, target) for target in (tenant, worker)),
            )
        )
        asyncio.get_running_loop().create_task(self.bus.control(control))

    def _viewer(self, kind: ControlKind) -> GatewayId:
        """Nobody's: a gateway that hears of what it never asked for would cancel it."""
        return GatewayId("viewer" if kind in {ControlKind.ATTACH, ControlKind.DETACH} else "")

    def _replace_gateway(self) -> None:
        ready = [gateway for gateway in self.gateways if gateway.process.is_up]
        if len(ready) > 1:
            self.rng.choice(ready).process.die()
            self.start_gateway()

    def _start(self) -> None:
        if len(self.up(self.schedulers)) < 3:
            self.start_scheduler()
        if len(self.up(list(self.workers))) < 3:
            self.start_worker()

    async def _calm(self) -> None:
        """All is well again: whatever is open must end."""
        await asyncio.sleep(self.rng.choice((0.0, 2.0)))
        for process in self.processes:
            process.spare()
            if process.is_dead:
                await process.ended()
        self._start()
        await self._release_all()
        async with asyncio.timeout(60):
            while not await self._is_settled():
                await self._release_workers()
                for process in self.processes:
                    if process.task is not None and process.task.done() and not process.is_dead:
                        await process.ended()
                await asyncio.sleep(0.05)
        await asyncio.sleep(3 * SETTINGS.lease_seconds)

    async def _release_all(self) -> None:
        for submission in self.wishes:
            for target in (submission, f"{submission}.0"):
                await self.bus.control(Control(ControlKind.RELEASE, target))
        for tenant in TENANTS:
            target = f"tenant:{tenant}"
            await self.bus.control(Control(ControlKind.RELEASE, target))
            await self.bus.control(Control(ControlKind.WEIGHT, target, weight=1.0))

    async def _release_workers(self) -> None:
        """A drain that was late may concern one that is here now."""
        for worker in await self.bus.workers():
            await self.bus.control(Control(ControlKind.RELEASE, f"worker:{worker}"))

    async def _is_settled(self) -> bool:
        left: list[Any] = [self.server.stream(key).ids for key in ("requests", "control")]
        left += [self.server.hash(key) for key in ("owners", "suspects")]
        return not any(left) and not any(
            gateway.router.num_open for gateway in self.gateways if gateway.process.is_up
        )

    def was_abandoned(self, wish: Wish) -> bool:
        """A leader may have thought that nobody comes back for it."""
        return any(
            gateway.was_away or gateway.process.is_dead
            for gateway in self.gateways
            if gateway.id == wish.submit.gateway
        )

    async def end(self) -> None:
        """All workers leave; then nothing lasting is left."""
        for service in self.workers.values():
            service.leave()
        async with asyncio.timeout(30):
            while await self.bus.workers():  # noqa: ASYNC110 - nothing tells when they are gone
                await asyncio.sleep(0.05)
        for process in self.processes:
            if process.is_up:
                process.die()
            await process.ended()
