"""The shell of the scheduler: waits for the lease, then moves news in and writes out."""

import asyncio
import secrets
import time
from dataclasses import asdict

import structlog

from common.bus import Cursors, DropGateway, Lease, SchedulerBus, Write, WriteEnd
from common.config import SchedulerSettings
from common.messages import FinishReason, WorkerHello, WorkerId
from scheduler.core.scheduler import Scheduler
from scheduler.core.shares import Shares
from scheduler.damage import DAMAGED, JournalWrite, end_behind_all
from scheduler.fairness import Counters
from scheduler.fleet import Fleet
from scheduler.leader import Leader
from scheduler.leadership import Leadership, LeadershipLostError
from scheduler.ledger import Ledger
from scheduler.logs import closing
from scheduler.recovery import recover
from scheduler.setup import choices_of, limits_of, memory_of, weights_of
from scheduler.status import Progress, Rates, status_writes, summary
from scheduler.viewers import Viewers
from scheduler.writer import Writer

log = structlog.get_logger()

WATCH_SECONDS = 0.25  # how often beats are looked at
STATUS_SECONDS = 0.5
HASH_KEY_BYTES = 32


class SchedulerService:
    def __init__(self, bus: SchedulerBus, settings: SchedulerSettings, holder: str) -> None:
        self.bus = bus
        self.settings = settings
        self.leadership = Leadership(bus, holder, settings.lease_seconds)
        self.hash_key = secrets.token_bytes(HASH_KEY_BYTES)

    async def run(self) -> None:
        """Lead whenever the lease can be had; for ever."""
        while True:
            lease = await self.leadership.win()
            try:
                await self._lead(lease)
            except* LeadershipLostError as lost:
                log.warning("stopped leading", epoch=lease.epoch, why=str(lost.exceptions[0]))

    async def _lead(self, lease: Lease) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.leadership.keep(lease), name="scheduler.lease")
                reign = Reign(self.bus, self.settings, lease, self.hash_key)
                tasks.create_task(reign.run(), name="reign")
        except asyncio.CancelledError:  # told to end; the reign is over
            await self.leadership.leave(lease)
            raise


class Reign:
    """One epoch of one leader."""

    def __init__(
        self, bus: SchedulerBus, settings: SchedulerSettings, lease: Lease, hash_key: bytes
    ) -> None:
        """`hash_key`: of the prefix caches. ValueError for settings that contradict each other."""
        self.bus = bus
        self.settings = settings
        self.choices = choices_of(settings)
        self.shares = Shares(weights=weights_of(settings))
        self.counters = Counters(self.shares)
        self.hash_key = hash_key
        self.writer = Writer(bus, lease.epoch)
        self.cursors = Cursors()
        fleet = Fleet(self._build_core, settings.lease_seconds, settings.step_seconds)
        ledger = Ledger(settings.journal_seconds)
        self.leader = Leader(fleet, ledger, settings.max_open, self.shares)
        self.viewers = Viewers(
            settings.lease_seconds, settings.gateway_grace_seconds, settings.resume_grace_seconds
        )
        self.rates = Rates()
        self.writes: list[Write] = []  # decided, and not written yet
        self.status_beat = 0
        self.next_watch = 0.0
        self.next_status = 0.0

    async def run(self) -> None:
        self.counters.restore(await self.bus.shares())
        await recover(self.bus, self.writer, self.leader, self.cursors)
        while True:
            await self._turn()

    async def _turn(self) -> None:
        """What the last turn decided goes out, and what came meanwhile goes in."""
        leader = self.leader
        self.cursors.logs = leader.fleet.logs()
        writes, self.writes = self.writes, []
        news = await self.writer.write_and_wait(writes, self.cursors, WATCH_SECONDS)
        for write in self.writer.take_refused():
            await self._end_damaged(write)
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
        for entry, control in leader.controls.take_unheeded():
            log.info("asked for nothing that is there", entry=entry, **asdict(control))
        if now >= self.next_status:
            self.next_status = now + STATUS_SECONDS
            writes += self._status(now)
        self.writes = writes

    async def _end_damaged(self, write: JournalWrite) -> None:
        """A journal was written to by somebody else: its request ends with an error."""
        request = write.end.request_id if isinstance(write, WriteEnd) else write.request_id
        [journal] = await self.bus.journals([request])
        if journal.head is None:  # it has expired, and the write was repeated
            return
        log.error("a journal is damaged: its request ends", request_id=request)
        account = self.leader.ledger.accounts.get(request)
        if journal.end is not None:  # that one counts, whoever wrote it
            return
        if isinstance(write, WriteEnd):
            await self.writer.write([end_behind_all(write, journal)])
        elif account is not None and not account.is_done:
            kept = len(journal.tokens)
            self.leader.end(account, FinishReason.ERROR, kept=kept, error=DAMAGED)

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
        self.leader.watched()
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
        leader, totals = self.leader, self.leader.totals
        rates = self.rates.note(now, totals.output_tokens, sum(totals.ended.values()))
        progress = Progress(
            self.writer.epoch,
            self.status_beat,
            totals.steps,
            *rates,
            sum(totals.preempted.values()),
            totals.cached_tokens,
        )
        fleet, quarantine = leader.fleet, leader.quarantine
        status = summary(fleet, leader.ledger, quarantine, progress)
        active = {each.submit.tenant for each in leader.ledger.submissions.values()}
        return [
            *status_writes(fleet, quarantine, totals, status),
            *leader.timeline.rest(now, fleet),
            *self.counters.writes(active),
        ]

    def _build_core(self, hello: WorkerHello) -> Scheduler:
        return Scheduler(
            limits_of(self.settings, hello),
            memory_of(hello),
            self.choices,
            self.shares,
            self.hash_key,
        )
