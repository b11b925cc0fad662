"""Where the tokens of each open request go, and the repairs that requests wait for.

A request has a route for each client that it is shown to.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

import structlog

from common.bus import GatewayBus
from common.messages import RequestId
from common.metrics import GatewayMetrics
from gateway.answer import Answer
from gateway.repair import Found, repair

SILENCE_SECONDS = 2.0  # without news of an open request before it is looked up
MAX_SILENCE_SECONDS = 8.0  # the same, once it was looked up in vain: doubled each time up to here
REPAIR_BATCH = 64  # requests that are repaired together: a log is read once for all of them
RETRY_SECONDS = 0.02  # before a repair that left something missing is begun again: doubled each
MAX_RETRY_SECONDS = 1.0  # time up to here

log = structlog.get_logger()


class Route:
    """Of one request to one client: when it was heard of last, and how its repair stands."""

    __slots__ = (
        "answer",
        "attempts",
        "choice",
        "due",
        "heard_at",
        "in_repair",
        "index",
        "patience",
    )

    def __init__(self, answer: Answer, index: int, now: float) -> None:
        self.answer = answer
        self.index = index
        self.choice = answer.choices[index]
        self.heard_at = now
        self.patience = SILENCE_SECONDS
        self.due = 0.0  # when the repair that is wanted may begin
        self.attempts = 0  # repairs in a row that left something missing
        self.in_repair = False

    def hear(self, now: float) -> None:
        """There is news."""
        self.heard_at = now
        self.patience = SILENCE_SECONDS
        if self.choice.has_news:
            self.answer.wake(self.index)

    def hear_nothing(self, now: float) -> None:
        """It was looked up in vain."""
        self.heard_at = now
        self.patience = min(self.patience * 2, MAX_SILENCE_SECONDS)

    def is_silent(self, now: float) -> bool:
        return now - self.heard_at >= self.patience and self.choice.has_room

    def fill(self, start: int, found: Found, now: float) -> None:
        """Take what a repair found from `start` on."""
        if found.end is not None and found.end.kept < start and not self.choice.is_stopped:
            log.error("the server lost tokens that were shown", request_id=self.choice.request)
        known = self.choice.num_known
        self.choice.fill(start, found)
        if self.choice.num_known > known or self.choice.is_complete:
            self.hear(now)
        else:
            self.hear_nothing(now)


class RepairQueue:
    """Routes to repair, in batches, one batch after the other; `run` until cancelled."""

    def __init__(self, bus: GatewayBus, metrics: GatewayMetrics) -> None:
        self.bus = bus
        self.metrics = metrics
        self._wanted: dict[Route, None] = {}
        self._has_wanted = asyncio.Event()

    def want(self, route: Route, due: float) -> None:
        """Repair it at `due` (monotonic seconds) or soon after; if wanted already, when it was."""
        if route not in self._wanted:
            self._wanted[route] = None
            route.due = due
            self._has_wanted.set()

    def forget(self, route: Route) -> None:
        self._wanted.pop(route, None)

    async def run(self) -> None:
        while True:
            if batch := self._due(time.monotonic()):
                await self._repair(batch)
            else:
                await self._wait()

    def _due(self, now: float) -> list[Route]:
        due = [route for route in self._wanted if route.due <= now][:REPAIR_BATCH]
        for route in due:
            self.forget(route)
        return due

    async def _wait(self) -> None:
        """Until something is wanted anew, or the first that waits is due."""
        self._has_wanted.clear()
        first = min((route.due for route in self._wanted), default=None)
        pause = None if first is None else max(0.0, first - time.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._has_wanted.wait()

    async def _repair(self, batch: Sequence[Route]) -> None:
        self.metrics.repairs.inc(len(batch))
        begun = [(route, route.choice.num_known) for route in batch]
        starts: dict[RequestId, int] = {}
        for route, start in begun:
            route.in_repair = True
            starts[route.choice.request] = min(start, starts.get(route.choice.request, start))
        found = await repair(self.bus, starts)
        now = time.monotonic()
        for route, start in begun:
            request = route.choice.request
            route.in_repair = False
            if not route.answer.is_closed:
                self._apply(route, start, _behind(found[request], start - starts[request]), now)

    def _apply(self, route: Route, start: int, found: Found | None, now: float) -> None:
        if found is not None:
            route.fill(start, found, now)
        if found is None or route.choice.wants_repair:
            pause = min(RETRY_SECONDS * 2**route.attempts, MAX_RETRY_SECONDS)
            route.attempts += 1
            self.want(route, now + pause)
        else:
            route.attempts = 0


def _behind(found: Found | None, num_known: int) -> Found | None:
    """What is new to a client that is so far ahead of another."""
    return replace(found, tokens=found.tokens[num_known:]) if found and num_known else found
