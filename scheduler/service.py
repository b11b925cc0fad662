"""The shell of the scheduler: waits for the lease, then moves news in and writes out."""

import asyncio
import time

import structlog

from common.bus import Cursors, DropGateway, Lease, SchedulerBus, Status, Write
from common.config import SchedulerSettings
from common.messages import FinishReason, WorkerHello, WorkerId
from scheduler.core.block_pool import BlockPool
from scheduler.core.scheduler import Limits, Scheduler
from scheduler.core.strategies import Strategies
from scheduler.fleet import Fleet
from scheduler.leader import Leader
from scheduler.leadership import Leadership, LeadershipLostError
from scheduler.ledger import Ledger
from scheduler.logs import closing
from scheduler.recovery import recover
from scheduler.status import Progress, Rates, status_writes, summary
from scheduler.viewers import Viewers
from scheduler.writer import Writer

log = structlog.get_logger()

WATCH_SECONDS = 0.25  # how often beats are looked at
STATUS_SECONDS = 0.5


class SchedulerService:
    def __init__(self, bus: SchedulerBus, settings: SchedulerSettings, holder: str) -> None:
        self.bus = bus
        self.settings = settings
        self.leadership = Leadership(bus, holder, settings.lease_seconds)

    async def run(self) -> None:
        """Lead whenever the lease can be had; for ever."""
        while True:
            lease = await self.leadership.win()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self.leadership.keep(lease), name="scheduler.lease")
                    tasks.create_task(Reign(self.bus, self.settings, lease).run(), name="reign")
            except* LeadershipLostError as lost:
                log.warning("stopped leading", epoch=lease.epoch, why=str(lost.exceptions[0]))


class Reign:
    """One epoch of one leader."""

    def __init__(self, bus: SchedulerBus, settings: SchedulerSettings, lease: Lease) -> None:
        self.bus = bus
        self.settings = settings
        self.writer = Writer(bus, lease.epoch)
        self.cursors = Cursors()
        fleet = Fleet(self._build_core, settings.lease_seconds, settings.step_seconds)
        self.leader = Leader(fleet, Ledger(settings.journal_seconds), settings.max_open)
        self.viewers = Viewers(settings.lease_seconds, settings.gateway_grace_seconds)
        self.rates = Rates()
        self.status_beat = 0
        self.next_watch = 0.0
        self.next_status = 0.0

    async def run(self) -> None:
        await recover(self.bus, self.writer, self.leader, self.cursors)
        while True:
            await self._turn()

    async def _turn(self) -> None:
        """Whatever came goes in, whatever follows from it goes out, in one write."""
        leader = self.leader
        self.cursors.logs = leader.fleet.logs()
        news = await self.bus.news(self.cursors, WATCH_SECONDS)
        self.cursors.advance(news)
        now = time.monotonic()
        leader.receive(news, now)
        for stream, entry in news.garbage:
            log.warning("dropped an entry that cannot be understood", stream=stream, entry=entry)
        if heads := leader.heads():
            leader.joined(await self.writer.write(heads), now)
        if now >= self.next_watch:
            self.next_watch = now + WATCH_SECONDS
            await self._watch(now)
        writes = leader.act(now)
        if now >= self.next_status:
            self.next_status = now + STATUS_SECONDS
            writes += self._status(now)
        await self.writer.write(writes)

    async def _watch(self, now: float) -> None:
        fleet = self.leader.fleet
        for worker_id, why in fleet.watch(await self.bus.workers(), now):
            await self._lose(worker_id, why, now)
        for worker_id in fleet.unopened():
            found = await self.bus.read_log(worker_id, 0)
            if found.closed:  # a registration that was repeated after the worker was given up
                fleet.workers[worker_id].trouble = "its log is closed"
            elif found.exists:
                fleet.open(worker_id)
                log.info("worker joined", worker=worker_id)
        self.leader.place_unassigned()
        forgotten = self.viewers.watch(await self.bus.gateways(), now)
        await self.writer.write([DropGateway(gateway) for gateway in forgotten])
        for account in self.viewers.abandoned(self.leader.ledger, now):
            log.info("nobody came back for it", request=account.request.id)
            self.leader.end(account, FinishReason.CANCELLED)

    async def _lose(self, worker_id: WorkerId, why: str, now: float) -> None:
        """Close its log, read it to the end, move what is unfinished elsewhere."""
        worker = self.leader.fleet.workers[worker_id]
        log.warning("lost a worker", worker=worker_id, why=why, step=worker.cursor)
        await self.writer.write(closing(worker_id))
        rest = await self.bus.read_log(worker_id, worker.cursor)
        died = bool(worker.hello.failed) or not worker.hello.leaving
        await self.writer.write(self.leader.bury(worker_id, rest, died, now))

    def _status(self, now: float) -> list[Write]:
        self.status_beat += 1
        suspects = self.leader.quarantine.line
        return status_writes(self.leader.fleet, suspects, self._summary(now))

    def _summary(self, now: float) -> Status:
        leader, totals = self.leader, self.leader.totals
        rates = self.rates.note(now, totals.output_tokens, sum(totals.ended.values()))
        progress = Progress(self.writer.epoch, self.status_beat, totals.steps, *rates)
        return summary(leader.fleet, leader.ledger, leader.quarantine.line, progress)

    def _build_core(self, hello: WorkerHello) -> Scheduler:
        settings = self.settings
        limits = Limits(
            max_step_tokens=min(
                settings.max_step_tokens or hello.max_step_tokens, hello.max_step_tokens
            ),
            max_running=min(settings.max_running, hello.max_rows),
            depth=settings.depth,
            max_request_tokens=hello.max_request_tokens,
        )
        strategies = Strategies.named(
            batching=settings.batching,
            prefill=settings.prefill,
            kv=settings.kv,
            policy=settings.policy,
        )
        return Scheduler(limits, BlockPool(hello.num_blocks, hello.block_size), strategies)
