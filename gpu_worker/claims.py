"""GPUs claimed by lease, so that workers that see the same ones do not take the same.

Whoever holds one raises its beat; whoever wants one gives the holder up when the beat stood still
for `CLAIM_SECONDS` of its own clock. The lease is no fence: a holder that is cut off from Redis
computes on, and ends when it sees that another one took over. The worst is that two share a GPU
for a while, and one finds no memory; what they commit does not depend on it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import structlog

from common.bus import GpuBus, Lease
from gpu_worker.engine import EngineError

log = structlog.get_logger()

CLAIM_SECONDS = 5.0
CHECKS_PER_CLAIM = 20


class ClaimLostError(Exception):
    """Another worker took over a GPU of this one."""


@dataclass(frozen=True, slots=True)
class Gpu:
    id: str  # the same on every host, in every container
    name: str  # as this process sees it: cuda:0


class Claims:
    """The GPUs of one worker."""

    def __init__(
        self,
        bus: GpuBus,
        holder: str,
        seconds: float = CLAIM_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._holder = holder
        self._seconds = seconds
        self._clock = clock
        self._held: dict[Gpu, Lease] = {}
        self._watched: dict[Gpu, tuple[Lease, float]] = {}  # as seen last, and since when
        self._last_look = 0.0

    async def claim(self, gpus: Sequence[Gpu], count: int) -> list[Gpu]:
        """The first `count` that nobody holds, held from now on.

        Waits until all holders were seen alive, or given up. EngineError names those that live.
        """
        began = self._clock()
        while True:
            if await self._look(gpus):
                began = self._clock()
            free = [gpu for gpu in gpus if self._is_free(gpu)]
            if len(free) >= count:
                if await self._take(free[:count]):
                    return free[:count]
            elif self._clock() - began > 2 * self._seconds:
                raise EngineError(self._refusal(gpus, count))
            await asyncio.sleep(self._seconds / CHECKS_PER_CLAIM)

    async def keep(self, pause_seconds: float) -> NoReturn:
        """Show life. Raises ClaimLostError when another one took over."""
        while True:
            await asyncio.sleep(pause_seconds)
            for gpu, lease in self._held.items():
                renewed = await self._bus.gpu_renew(gpu.id, lease)
                if renewed is None:
                    raise ClaimLostError(f"another worker took over {gpu.name} ({gpu.id})")
                self._held[gpu] = renewed

    async def leave(self) -> None:
        """For others to take at once."""
        while self._held:
            gpu, lease = self._held.popitem()
            await self._bus.gpu_leave(gpu.id, lease)

    async def _look(self, gpus: Sequence[Gpu]) -> bool:
        """See all beats; whether that was so long after the last time that it says nothing.

        While the server is away, nobody's beat moves.
        """
        leases = await self._bus.gpu_leases([gpu.id for gpu in gpus])
        now = self._clock()
        is_late = now - self._last_look > self._seconds / 2
        if is_late:
            self._watched.clear()
        self._last_look = now
        for gpu, lease in zip(gpus, leases, strict=True):
            if gpu not in self._watched or self._watched[gpu][0] != lease:
                self._watched[gpu] = lease, now
        return is_late

    def _is_free(self, gpu: Gpu) -> bool:
        lease, since = self._watched[gpu]
        return not lease.holder or self._clock() - since >= self._seconds

    async def _take(self, gpus: Sequence[Gpu]) -> bool:
        """All of them, or none: two workers with half of what they need would wait for ever."""
        for gpu in gpus:
            seen, _ = self._watched[gpu]
            lease = await self._bus.gpu_take(gpu.id, self._holder, seen)
            if lease is None:
                await self.leave()
                return False
            if seen.holder:
                log.warning("took over a GPU", device=gpu.name, gpu=gpu.id, of=seen.holder)
            self._held[gpu] = lease
        return True

    def _refusal(self, gpus: Sequence[Gpu], count: int) -> str:
        held = [
            f"{gpu.name} is held by {self._watched[gpu][0].holder}"
            for gpu in gpus
            if not self._is_free(gpu)
        ]
        return f"{count} of {len(gpus)} GPUs asked for, but {', '.join(held)}: start fewer workers"
