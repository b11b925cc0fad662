"""An event loop whose clock jumps to the next timer when nobody has anything to do.

Hours of waiting pass in no time, and a schedule drawn from a seed comes out the same each time.
`time.monotonic` is the loop's clock meanwhile. Every turn of the loop costs `TURN_SECONDS`, so that
who works without a pause gets older too.
"""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest import mock

TURN_SECONDS = 2e-5

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            assert timeout is not None, "everybody waits, and nothing will ever happen"
            self.now += max(timeout, TURN_SECONDS)
        return events


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`; no threads, no sockets."""
    selector = _Selector()

    def make_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(selector)
        loop.time = lambda: selector.now  # type: ignore[method-assign]
        return loop

    with (
        mock.patch.object(time, "monotonic", lambda: selector.now),  # noqa: PT008 - it changes
        asyncio.Runner(loop_factory=make_loop) as runner,
    ):
        return runner.run(main)
