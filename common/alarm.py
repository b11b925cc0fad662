"""A timer that is set again and again, mostly long before it is due.

To make and cancel one of the event loop's for every token would cost as much as to wait for it.
Here one is left running, and looks again at the time for which the alarm was set last.
"""

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls `ring` once when the time set last is over. Belongs to the running loop."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._due: float | None = None  # on the loop's clock; None: it is not set
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = 0.0  # when the timer is over

    def set(self, seconds: float) -> None:
        """From now on, in place of what was set before."""
        self._due = due = self._loop.time() + seconds
        if self._timer is not None and self._looks_at > due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._start(due)

    def clear(self) -> None:
        """Do not ring until it is set again."""
        self._due = None

    def close(self) -> None:
        """Never ring again, and leave nothing running."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._due is None:
            return
        if self._loop.time() < self._due:
            self._start(self._due)
        else:
            self._due = None
            self._ring()

    def _start(self, moment: float) -> None:
        self._timer, self._looks_at = self._loop.call_at(moment, self._look), moment
