"""A worker's claims on a thread of their own, which shows life while the model loads, too."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import NoReturn

from common.config import WorkerSettings
from common.redis_bus import RedisBus
from gpu_worker.claims import Claims, Gpu
from gpu_worker.loop_thread import LoopThread

LOST = 1  # exit status: whoever supervises starts the worker again, which looks for another GPU
LEAVE_SECONDS = 2.0  # a server that is away is not waited for: others will see that we are gone


@contextlib.contextmanager
def claimed(
    settings: WorkerSettings, holder: str, gpus: Sequence[Gpu], count: int
) -> Iterator[list[Gpu]]:
    """`count` of the GPUs, held until leaving. EngineError, BusError.

    The process ends, with one line, when another worker takes one of them over.
    """
    thread = LoopThread("claims")
    bus = RedisBus(settings.redis_url, settings.pool)
    claims = Claims(bus, holder)

    async def take() -> list[Gpu]:
        await bus.connect()
        return await claims.claim(gpus, count)

    async def leave() -> None:
        await claims.leave()
        await bus.aclose()

    try:
        taken = thread.start(take()).result()
        keeping = thread.start(claims.keep(settings.beat_seconds))
        keeping.add_done_callback(_end)
        try:
            yield taken
        finally:
            keeping.cancel()
    finally:
        thread.close(leave(), LEAVE_SECONDS)


def _end(keeping: "Future[NoReturn]") -> None:
    """The engine may be in the middle of a step, or of loading: neither can be interrupted."""
    if not keeping.cancelled():
        sys.stderr.write(f"chairlift worker: {keeping.exception()}\n")
        os._exit(LOST)
