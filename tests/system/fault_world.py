"""A pool whose processes, connections and server fail as a seed says, and its clients."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

from common import bus
from common.bus import AddTimeline, SetStatus
from common.config import GatewaySettings, SchedulerSettings
from common.memory_bus import MemoryBus
from common.messages import (
    Control,
    ControlKind,
    Ending,
    GatewayId,
    Sampling,
    SubmissionId,
    Submit,
)
from gateway.head import Head
from gpu_worker.service import WorkerService
from scheduler.service import SchedulerService
from tests.system.fault_clients import KINDS, Client
from tests.system.fault_gateway import Gateway
from tests.system.faulty_server import FaultyServer
from tests.system.pool import engine
from tests.system.processes import LATE_SECONDS, Process
from tests.system.truthful import (
    BREAKING,
    FAILING,
    NUM_TOKENS,
    NUM_WORDS,
    LoopRunner,
    TruthfulEngine,
    token_bytes,
)

JOURNAL_SECONDS = 120.0
TENANTS = ("alice", "bob")
PARTITIONS = (1.0, 1.0, 5.0, 30.0)  # seconds
PAUSES = (0.15, 0.6, 1.5, 4.0)  # leases; one is given up after one
HANGS = (1.0, 5.0, 20.0)  # seconds
MAX_LENGTH = 130  # tokens of prompt and answer, where the cache is small
TOO_LONG = 150  # tokens of an answer
FEW_OPEN = 4  # choices, where one more is one too many
START_SECONDS = 2.0  # until gateways know of a leader
SETTLE_SECONDS = 200.0  # once all is well
PATIENCE_SECONDS = 60.0  # of clients, where the server has lost something
WRITES = [write for write in bus.Write.__args__ if write not in {SetStatus, AddTimeline}]
CONTROLS = (
    ControlKind.CANCEL,
    ControlKind.HOLD,
    ControlKind.RELEASE,
    ControlKind.PRIORITY,
    ControlKind.ATTACH,
    ControlKind.DETACH,
)


class World:
    """One schedule, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.trace: list[tuple[float, str, str]] = []
        is_always = self.rng.random() < 0.85
        self.server = FaultyServer(self.rng, is_always=is_always, note=self.note)
        self.bus = MemoryBus(self.server)
        self.serial = itertools.count(1)
        self.processes: list[Process] = []
        self.schedulers: list[Process] = []
        self.workers: dict[Process, WorkerService] = {}
        self.engines: dict[Process, TruthfulEngine] = {}
        self.gateways: list[Gateway] = []
        self.clients: list[Client] = []
        self.background: set[asyncio.Task[Any]] = set()
        self._draw()

    def _draw(self) -> None:
        """What kind of world it is. Each has some kinds of faults only, and those more often."""
        rng = self.rng
        self.latency = rng.choice((0.0, 0.0, 0.002, 0.05))
        self.losses = rng.choice((0.0, 0.01, 0.05))
        self.lates = rng.choice((0.0, 0.0, 0.02, 0.1))
        self.step_seconds = rng.choice((0.02, 0.1, 0.3))
        self.pace = rng.choice((0.5, 2.0))  # seconds between two faults, about
        self.num_faults = rng.choice((6, 15, 30))
        self.num_clients = rng.choice((4, 8, 12))
        self.small_cache = rng.random() < 0.5
        self.longest = rng.choice((6, 24, 60))  # answer
        self.hurries = rng.random() < 0.5  # logs are trimmed at once
        self.server.losses = rng.choice((0.0, 0.02, 0.2))
        self.server.delay_seconds = rng.choice((0.0, 0.0, 0.5))
        self.lease = rng.choice((0.5, 2.0))  # seconds
        self.settings = SchedulerSettings(
            journal_seconds=JOURNAL_SECONDS,
            lease_seconds=self.lease,
            preemption=rng.choice(("recompute", "swap", "never")),
            policy=rng.choice(("priority", "fair")),
            gateway_grace_seconds=rng.choice((2.0, 10.0)),
            resume_grace_seconds=rng.choice((5.0, 30.0)),
            depth=rng.choice((1, 1, 2)),
            step_seconds=rng.choice((4.0, 60.0)),
            max_open=rng.choice((FEW_OPEN, 100, 100, 100)),
        )
        self.gateway_settings = GatewaySettings(
            keep_alive_seconds=5.0,
            max_queue=rng.choice((3, 100, 100, 100)),
            drain_seconds=rng.choice((0.5, 5.0)),
        )
        self.shared = tuple(rng.randrange(NUM_WORDS) for _ in range(40))
        self.faults = [fault for fault in self.every_fault() if rng.random() < 0.5]

    def note(self, who: str, what: str) -> None:
        self.trace.append((asyncio.get_running_loop().time(), who, what))

    def spawn(self, work: Awaitable[Any]) -> None:
        async def act() -> None:
            await work

        task = asyncio.get_running_loop().create_task(act())
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    # --- Processes --------------------------------------------------------------------------

    def process(self, kind: str) -> Process:
        name = f"{kind}{next(self.serial)}"
        process = Process(name, self.server, self.rng, self.note, self.spawn)
        process.link.latency = self.latency
        process.link.losses, process.link.lates = self.losses, self.lates
        self.processes.append(process)
        return process

    def start_scheduler(self) -> None:
        process = self.process("s")
        self.schedulers.append(process)
        faulty: Any = process.bus
        process.start(SchedulerService(faulty, self.settings, process.name).run)

    def start_worker(self) -> None:
        process = self.process("w")
        small: dict[str, Any] = {
            "num_blocks": 20,
            "block_size": 8,
            "max_request_tokens": MAX_LENGTH,
        }
        faulty: Any = process.bus
        computes = engine(
            TruthfulEngine,
            step_seconds=0.0,
            max_rows=8,
            num_host_blocks=self.rng.choice((0, 8, 64)),
            **(small if self.small_cache else {}),
        )
        assert isinstance(computes, TruthfulEngine)
        service = WorkerService(
            faulty,
            computes,
            process.name,
            beat_seconds=self.lease / 4,
            drain_seconds=2.0,
            runner=lambda _engine, deliver: LoopRunner(computes, deliver, self.step_seconds),
        )
        self.workers[process] = service
        self.engines[process] = computes
        process.start(service.run)

    def start_gateway(self) -> None:
        self.gateways.append(Gateway(self.process("g"), self.gateway_settings))

    def up(self, processes: list[Process]) -> list[Process]:
        return [process for process in processes if process.is_up]

    def open_gateways(self) -> list[Gateway]:
        return [gateway for gateway in self.gateways if gateway.is_open]

    # --- The schedule -----------------------------------------------------------------------

    async def run(self) -> None:
        self.note("world", "always" if self.server.is_always else "everysec")
        self.spawn(self.server.live())
        for start in (self.start_scheduler, self.start_worker, self.start_gateway):
            for _ in range(self.rng.choice((1, 2))):
                start()
        await asyncio.sleep(self.rng.choice((0.5, START_SECONDS, START_SECONDS)))
        asking = asyncio.get_running_loop().create_task(self._ask())
        for _ in range(self.num_faults if self.faults else 0):
            await asyncio.sleep(self.pace * self.rng.choice((0.02, 0.1, 0.5, 1.0, 2.0)))
            self._fault()
            self._come_back()
            self._check_processes()
        await asking
        await self._calm()

    async def _ask(self) -> None:
        for number in range(self.num_clients):
            await asyncio.sleep(self.pace * self.rng.random())
            self._come(self._client(number))

    def _come(self, client: Client) -> None:
        self.clients.append(client)
        for kind in (kind for kind, applies in KINDS.items() if applies(client)):
            self.note(client.submit.submission_id, kind)
        self._connect(client, is_new=True)
        if client.key and self.rng.random() < 0.3:
            self._later(self.rng.choice((0.0, 0.1, 2.0)), lambda: self._come(client.twin()))

    def _connect(self, client: Client, *, is_new: bool = False) -> None:
        """To any gateway that is there; without one, it tries again later."""
        if ready := self.open_gateways():
            self.rng.choice(ready).serve(client, is_new=is_new)
        else:
            self._later(1.0, lambda: self._connect(client, is_new=is_new))

    def _come_back(self) -> None:
        """Whoever was cut off, or has left and thinks better of it."""
        for client in self.clients:
            gone = client.connection is not None and client.connection.is_closed
            if gone and client.comes_back and not client.is_over:
                client.connection = None
                self.note(client.submit.submission_id, "comes back")
                self._later(self.rng.choice((0.1, 1.0, 5.0)), lambda c=client: self._connect(c))  # type: ignore[misc]

    def _client(self, number: int) -> Client:
        rng = self.rng
        prompt = self._prompt()
        prompts = (prompt, prompt[::-1])[: rng.choice((1, 1, 1, 2))]
        is_too_long = self.small_cache and rng.random() < 0.05
        n = rng.choice((1, 1, 2))
        ends = tuple(range(5)) if rng.random() < 0.3 else ()
        stop = (token_bytes(rng.randrange(NUM_TOKENS)).decode(),) if rng.random() < 0.3 else ()
        key = f"key {number}" if rng.random() < 0.3 else ""
        resumable = bool(key) or rng.random() < 0.2
        streams, num_choices = rng.random() < 0.8, len(prompts) * n
        frame = Head(
            chat=False,
            model="m",
            created=0,
            num_choices=num_choices,
            n=n,
            num_prompt_tokens=sum(map(len, prompts)),
            stream=streams,
            include_usage=rng.random() < 0.3,
            stop=stop,
            hidden=ends,
            in_turn=resumable and streams and num_choices > 1,
        ).to_frame()
        submit = Submit(
            SubmissionId(f"r{number:02d}"),
            prompts=prompts,
            n=n,
            sampling=Sampling(rng.randrange(100), presence_penalty=rng.choice((0.0, 0.5))),
            ending=Ending(
                max_tokens=TOO_LONG if is_too_long else rng.randint(1, self.longest),
                end_tokens=ends,
            ),
            gateway=GatewayId(""),
            deadline_seconds=rng.random() * 10 if rng.random() < 0.1 else None,
            resumable=resumable,
            digest=key,
            tenant=rng.choice(TENANTS),
            frame=frame,
        )
        client = Client(submit, self.server, key)
        client.comes_back = submit.resumable and rng.random() < 0.8
        if rng.random() < 0.3:
            client.leaves_at = rng.randint(0, submit.ending.max_tokens)
        if rng.random() < 0.1:
            client.reads_seconds = 0.3
        return client

    def _prompt(self) -> tuple[int, ...]:
        rng = self.rng
        shared = self.shared[: rng.choice((0, 0, 10, 40))]
        words = [rng.randrange(NUM_WORDS) for _ in range(rng.randint(1, 60 - len(shared)))]
        if rng.random() < 0.06:
            words[-1] = rng.choice((FAILING, BREAKING))
        return (*shared, *words)

    # --- Faults -----------------------------------------------------------------------------

    def every_fault(self) -> list[Callable[[], None]]:
        return [
            self._kill,
            self._kill_at_once,
            self._kill_inside,
            self._kill_inside,
            self._pause,
            self._stall_and_take_over,
            self._stall_inside,
            self._stall_inside,
            self._end_scheduler,
            self._leave,
            self._break_step,
            self._hang_step,
            self._mute,
            self._resubscribe,
            self._control,
            self._steer,
            self._replace_gateway,
            self._end_gateway,
            self._partition,
            self._crash_server,
            self._fill_server,
            self._start_another,
        ]

    def _fault(self) -> None:
        fault = self.rng.choice(self.faults)
        self.note("world", fault.__name__)
        fault()
        if self.rng.random() < 0.5:
            self._start()

    def _later(self, seconds: float, act: Callable[[], Any]) -> None:
        asyncio.get_running_loop().call_later(seconds, act)

    def _kill(self) -> None:
        if ready := self.up([*self.schedulers, *self.workers]):
            victim = self.rng.choice(ready)
            victim.die_after(self.rng.choice((0, 1, 3, 10, 30)))

    def _kill_at_once(self) -> None:
        """Wherever it is."""
        if ready := self.up([*self.schedulers, *self.workers]):
            self.rng.choice(ready).die()

    def _kill_inside(self) -> None:
        """Between two writes of one round trip."""
        if schedulers := self.up(self.schedulers):
            self.rng.choice(schedulers).die_behind(self.rng.choice(WRITES))

    def _pause(self) -> None:
        if processes := self.up(self.processes):
            self._stall(self.rng.choice(processes), self.lease * self.rng.choice(PAUSES))

    def _stall_and_take_over(self) -> None:
        """Some sleep through a takeover, in the middle of their work."""
        for victim in self.up([*self.schedulers, *self.workers]):
            if self.rng.random() < 0.5:
                self._stall(victim, self.lease * self.rng.choice((1.2, 2.0, 3.0)))
        self._start_another()

    def _stall_inside(self) -> None:
        """A scheduler stops in the middle of a round trip, and is replaced before it goes on.

        It may go on at the very moment: what it writes then meets what the next leader does first.
        """
        if not (schedulers := self.up(self.schedulers)):
            return
        victim = self.rng.choice(schedulers)
        seconds = self.lease * self.rng.choice((1.5, 3.0))
        is_woken = self.rng.random() < 0.5

        def stall() -> None:
            self._stall(victim, seconds)
            if is_woken:
                self.server.at_takeover.append(victim.resume)

        victim.trap(self.rng.choice(WRITES), stall)
        self._start_another()

    def _stall(self, victim: Process, seconds: float) -> None:
        self._is_away(victim, seconds)
        kind = "longer" if seconds > self.lease else "shorter"
        victim.note(victim.name, f"pauses, {kind} than a lease")
        victim.pause()
        self._later(seconds, victim.resume)

    def _is_away(self, victim: Process, seconds: float) -> None:
        for each in self.gateways:
            each.was_away |= each.process is victim and seconds >= 1.0

    def _partition(self) -> None:
        """Between one process and the server; what is published meanwhile is gone, or late."""
        if not (ready := self.up(self.processes)):
            return
        victim, seconds = self.rng.choice(ready), self.rng.choice(PARTITIONS)
        self._is_away(victim, seconds)
        gateway = GatewayId(victim.name)
        victim.note(victim.name, "is cut off")
        victim.link.cut()
        self.server.unheard.add(gateway)

        def mend() -> None:
            victim.link.mend()
            self.server.unheard.discard(gateway)
            self.server.resubscribe(gateway)

        self._later(seconds, mend)

    def _crash_server(self) -> None:
        if self.server.is_up.is_set():
            seconds = self.rng.choice((0.1, 0.5, 3.0, 12.0))
            for process in self.processes:
                self._is_away(process, seconds)
            self.server.crash(seconds)

    def _fill_server(self) -> None:
        self.server.full = True
        self._later(self.rng.choice((0.5, 3.0)), self._empty_server)

    def _empty_server(self) -> None:
        self.server.full = False

    def _mute(self) -> None:
        """It works on, and nobody hears that it lives. A leader is replaced meanwhile."""
        if not (ready := self.up([*self.schedulers, *self.workers])):
            return
        victim = self.rng.choice(ready)
        victim.bus.is_mute = True
        self._later(2 * self.lease, lambda: setattr(victim.bus, "is_mute", False))
        if victim in self.schedulers:
            self._start_another()

    def _leave(self) -> None:
        if workers := self.up(list(self.workers)):
            self.workers[self.rng.choice(workers)].leave()

    def _end_scheduler(self) -> None:
        """As by SIGTERM."""
        if schedulers := self.up(self.schedulers):
            self.rng.choice(schedulers).end()

    def _break_step(self) -> None:
        """An exception in an engine: the worker says so, and starts over."""
        if workers := self.up(list(self.workers)):
            self.engines[self.rng.choice(workers)].is_broken = True

    def _hang_step(self) -> None:
        if workers := self.up(list(self.workers)):
            self.engines[self.rng.choice(workers)].hang_seconds = self.rng.choice(HANGS)

    def _resubscribe(self) -> None:
        for gateway in self.gateways:
            self.server.resubscribe(gateway.id)

    def _control(self) -> None:
        if self.clients:
            submission = self.rng.choice(self.clients).submit.submission_id
            target = self.rng.choice((submission, f"{submission}.0"))
            kind = self.rng.choice(CONTROLS)
            self.note("operator", kind)
            for client in self.clients:
                is_meant = client.submit.submission_id == submission
                client.was_cancelled |= is_meant and kind is ControlKind.CANCEL
            # Nobody's: a gateway that hears of what it never asked for would cancel it.
            shows = kind in {ControlKind.ATTACH, ControlKind.DETACH}
            gateway = GatewayId("viewer" if shows else "")
            self.spawn(self.bus.control(Control(kind, target, gateway=gateway, priority=-1)))

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
        self.note("operator", f"{control.kind} {control.target.partition(':')[0]}")
        self.spawn(self.bus.control(control))

    def _end_gateway(self) -> None:
        if ready := self.open_gateways():
            self.rng.choice(ready).end()
            self.start_gateway()

    def _replace_gateway(self) -> None:
        if ready := self.open_gateways():
            victim = self.rng.choice(ready)
            victim.process.die()
            for client in victim.clients:
                if not client.is_over:
                    client.leave()
            self.start_gateway()

    def _start_another(self) -> None:
        if len(self.up(self.schedulers)) < 3:
            self.start_scheduler()

    def _start(self) -> None:
        """As a supervisor does."""
        if len(self.up(self.schedulers)) < 2:
            self.start_scheduler()
        if len(self.up(list(self.workers))) < 2:
            self.start_worker()
        if not self.open_gateways():
            self.start_gateway()

    def _check_processes(self) -> None:
        """Raises what one of them died of, unless it was killed."""
        for process in self.processes:
            task = process.task
            if task is not None and task.done() and not task.cancelled() and task.exception():
                raise task.exception()  # type: ignore[misc]

    # --- And then it is over ----------------------------------------------------------------

    async def _calm(self) -> None:
        """All is well again: whatever is open must end."""
        self.note("world", "calm")
        await asyncio.sleep(self.rng.choice((0.0, 4.0)))
        await self.server.is_up.wait()
        self.server.full = False
        for process in self.processes:
            process.spare()
            process.link.mend()
            process.link.losses = process.link.lates = 0.0
            process.bus.is_mute = False
        self.losses = self.lates = 0.0
        for gateway in self.gateways:
            self.server.unheard.discard(gateway.id)
            self.server.resubscribe(gateway.id)
        await asyncio.sleep(max(LATE_SECONDS))  # until nothing is under way that is late
        await self._release_all()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while any(self._left().values()):
            assert loop.time() < begun + SETTLE_SECONDS, self._left()
            if self.server.has_lost and loop.time() > begun + PATIENCE_SECONDS:
                self._give_up()
            self._start()  # one that was told to end may end only now
            self._come_back()
            await self._release_workers()
            self._check_processes()
            await asyncio.sleep(1.5)  # until a leader has read it, and dropped it
        await asyncio.sleep(3 * self.lease)
        self._check_processes()

    def _give_up(self) -> None:
        """The server forgot what it had accepted, and nobody but its client knows of it."""
        for client in self.clients:
            client.comes_back = False
            if not client.is_over:
                client.leave()

    async def _release_all(self) -> None:
        for client in self.clients:
            submission = client.submit.submission_id
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

    def _left(self) -> dict[str, list[Any]]:
        """What must go."""
        return {
            **{key: list(self.server.stream(key).ids) for key in ("requests", "control")},
            **{key: list(self.server.hash(key)) for key in ("owners", "suspects")},
            "gateways": [each.id for each in self.gateways if each.process.is_up and each.num_open],
            "clients": [
                client.submit.submission_id
                for client in self.clients
                if client.comes_back and not client.is_over
            ],
        }

    async def end(self) -> None:
        """All workers leave; then whatever had a time to live has lived."""
        for service in self.workers.values():
            service.leave()
        async with asyncio.timeout(30):
            while await self.bus.workers():  # noqa: ASYNC110 - nothing tells when they are gone
                await asyncio.sleep(0.5)
        for process in self.processes:
            if process.is_up:
                process.vanish()
            await process.ended()
        await asyncio.sleep(2 * JOURNAL_SECONDS)
        for task in list(self.background):
            task.cancel()
