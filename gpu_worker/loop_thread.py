"""An event loop on a thread of its own, for callers that block or compute meanwhile."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self, last: Coroutine[Any, Any, None], seconds: float) -> None:
        """Cancel what is still running, do `last`, and end; within so many seconds."""
        with contextlib.suppress(TimeoutError):
            self.start(_cancel_others(last)).result(seconds)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()


async def _cancel_others(last: Coroutine[Any, Any, None]) -> None:
    """The cancelled get to their `finally` before `last`: they may use what it closes."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        if not task.cancelling():  # a second time would interrupt the `finally` of the first
            task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await last
