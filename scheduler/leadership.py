"""Who leads: waits until the lease is free, takes it, keeps it.

Nothing here relies on a clock that others share. A watcher gives the holder up when the beat stood
still for `lease_seconds` of the watcher's own monotonic clock; a holder that could not renew for
two thirds of that stops by itself, before anybody takes over. One that ends leaves the lease empty.
"""

import asyncio
import time
from contextlib import suppress

import structlog

from common.bus import Lease, SchedulerBus

log = structlog.get_logger()

CHECKS_PER_LEASE = 8


class LeadershipLostError(Exception):
    """Another scheduler leads, this one could not show life in time, or what it knows is old."""


class Leadership:
    def __init__(self, bus: SchedulerBus, holder: str, lease_seconds: float) -> None:
        self.bus = bus
        self.holder = holder
        self.lease_seconds = lease_seconds

    async def win(self) -> Lease:
        """Wait, as long as it takes, until this scheduler leads."""
        seen, since = await self.bus.lease(), time.monotonic()
        while True:
            # Its own lease is one that it stopped to lead by, and that nobody has taken since.
            is_left = seen.holder in ("", self.holder)
            is_free = is_left or time.monotonic() - since >= self.lease_seconds
            if is_free and (lease := await self.bus.lease_take(self.holder, seen)):
                log.info("took the lease", epoch=lease.epoch)
                return lease
            await asyncio.sleep(self.lease_seconds / CHECKS_PER_LEASE)
            lease = await self.bus.lease()
            if lease != seen:
                seen, since = lease, time.monotonic()

    async def keep(self, lease: Lease) -> None:
        """Renew until that fails; raises LeadershipLostError then."""
        while True:
            await asyncio.sleep(self.lease_seconds / CHECKS_PER_LEASE)
            try:
                async with asyncio.timeout(self.lease_seconds * (2 / 3 - 1 / CHECKS_PER_LEASE)):
                    renewed = await self.bus.lease_renew(lease)
            except TimeoutError:
                raise LeadershipLostError("the lease could not be renewed in time") from None
            if renewed is None:
                raise LeadershipLostError("another scheduler took the lease")
            if renewed.beat <= lease.beat:  # what ended may be open again: it must be read anew
                raise LeadershipLostError("the server has forgotten what it had answered")
            lease = renewed

    async def leave(self, lease: Lease) -> None:
        """The last act of a leader that ends: whoever stands by takes over at once."""
        with suppress(TimeoutError):  # by then it is taken for dead anyway
            async with asyncio.timeout(self.lease_seconds):
                await self.bus.lease_leave(lease)
