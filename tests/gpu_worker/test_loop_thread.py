"""A loop on a thread of its own leaves nothing behind."""

import asyncio
import threading

from gpu_worker.loop_thread import LoopThread


def test_who_is_still_at_work_cleans_up_before_the_last() -> None:
    ran: list[str] = []
    begun = threading.Event()

    async def works() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ran.append("cleaned up")

    async def last() -> None:
        ran.append("last")

    thread = LoopThread("test")
    future = thread.start(works())
    begun.wait()
    future.cancel()
    thread.close(last(), seconds=10)
    assert ran == ["cleaned up", "last"]
