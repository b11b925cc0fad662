"""Whether the pool moves, from what its leader says of itself: beats, and steps that go on.

Judged by this process's monotonic clock and by what changed meanwhile, never by what merely
stands in Redis: the numbers of a pool that died yesterday stand there too.
"""

import asyncio
import itertools
import time
from contextlib import suppress
from dataclasses import dataclass

from common.bus import GatewayBus, Status
from common.messages import GatewayId, WorkerHello, WorkerId
from common.metrics import GatewayMetrics
from gateway.admission import Load

LEADER_SECONDS = 10.0  # without a beat before a scheduler is missed; a takeover takes two to four
POLL_SECONDS = 0.5
BEAT_SECONDS = 0.5
FIRST_LOOK_SECONDS = 3.0  # a leader that is there has beaten twice, and was looked at twice


@dataclass(frozen=True, slots=True)
class Health:
    ok: bool
    reason: str = ""


class Progress:
    """What was seen of the pool, and since when it stands still. `now` is monotonic seconds."""

    def __init__(self, now: float) -> None:
        self.status = Status()
        self.workers: dict[WorkerId, WorkerHello] = {}
        self.num_open = 0
        self._largest = 0  # request that a worker could take, when there was one
        self._seen: Status | None = None
        self._started_at = now
        self._beat_at: float | None = None  # when a beat was seen to move
        self._moved_at = now  # when a step was applied, or nothing could be

    def see(
        self, status: Status, workers: dict[WorkerId, WorkerHello], num_open: int, now: float
    ) -> None:
        seen, self._seen = self._seen, status
        self.status, self.workers, self.num_open = status, workers, num_open
        if workers:
            self._largest = max(hello.max_request_tokens for hello in workers.values())
        if seen is not None and (seen.epoch, seen.beat) != (status.epoch, status.beat):
            self._beat_at = now
        moves = seen and (seen.epoch, seen.steps) != (status.epoch, status.steps)
        if num_open == 0 or moves or _is_all_held(status):
            self._moved_at = now

    @property
    def beat_at(self) -> float | None:
        """When a leader's beat was last seen to move, monotonic seconds."""
        return self._beat_at

    def has_leader(self, now: float) -> bool:
        return self._beat_at is not None and now - self._beat_at < LEADER_SECONDS

    def max_request_tokens(self, of_model: int) -> int:
        """Prompt and answer of the largest request that fits: by the model, and by the workers.

        While there are none, by the last ones: what comes in their place is most likely the same.
        """
        return min(of_model, self._largest) if self._largest else of_model

    def health(self, stall_seconds: float, now: float) -> Health:
        """Busy is healthy, and so is idle; nothing moving while requests are open is not."""
        beat_at = self._started_at if self._beat_at is None else self._beat_at
        if now - beat_at >= stall_seconds:
            return Health(False, "no scheduler leads")
        if now - self._moved_at >= stall_seconds:
            return Health(False, f"requests are open and no step came for {stall_seconds:g} s")
        return Health(True)

    def readiness(self, now: float) -> Health:
        if not self.has_leader(now):
            return Health(False, "no scheduler leads")
        if not self.workers:
            return Health(False, "no worker has registered")
        return Health(True)


def _is_all_held(status: Status) -> bool:
    """Whatever is open waits for somebody to release it."""
    return status.num_running == 0 and status.num_held > 0 and status.num_held >= status.num_waiting


class Monitor:
    """Polls the pool and shows this gateway's own life; `run` until cancelled."""

    def __init__(self, bus: GatewayBus, gateway: GatewayId, metrics: GatewayMetrics) -> None:
        self.bus = bus
        self.gateway = gateway
        self.metrics = metrics
        self.progress = Progress(time.monotonic())
        self._has_seen_a_leader = asyncio.Event()
        self._added_submissions = 0  # by this gateway since the last poll
        self._added_tokens = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat(), name="gateway.beat")
            tasks.create_task(self._poll(), name="gateway.poll")

    async def look_first(self) -> None:
        """Until a leader was seen, while this runs, or most likely there is none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self._has_seen_a_leader.wait()

    def load(self) -> Load:
        progress = self.progress
        return Load(
            has_leader=progress.has_leader(time.monotonic()),
            num_open=progress.num_open + self._added_submissions,
            waiting_tokens=progress.status.waiting_tokens + self._added_tokens,
            wait_seconds=progress.status.wait_seconds,
        )

    def add(self, num_tokens: int) -> None:
        """This gateway hands on a submission, which the next poll will see."""
        self._added_submissions += 1
        self._added_tokens += num_tokens

    async def _beat(self) -> None:
        for beat in itertools.count(1):
            await self.bus.beat_gateway(self.gateway, beat)
            await asyncio.sleep(BEAT_SECONDS)

    async def _poll(self) -> None:
        while True:
            await self.poll()
            await asyncio.sleep(POLL_SECONDS)

    async def poll(self) -> None:
        submissions, tokens = self._added_submissions, self._added_tokens
        status, workers = await self.bus.status(), await self.bus.workers()
        self.progress.see(status, workers, await self.bus.num_open(), time.monotonic())
        self._added_submissions -= submissions  # they are in what was read
        self._added_tokens -= tokens
        if self.progress.beat_at is not None:
            self._has_seen_a_leader.set()
        self.metrics.running.set(status.num_running)
        self.metrics.waiting.set(status.num_waiting)
        self.metrics.wait.set(status.wait_seconds)
        self.metrics.cost_error.set(status.cost_error)
        self.metrics.preempted.set(status.num_preempted)
        self.metrics.cached.set(status.cached_tokens)
