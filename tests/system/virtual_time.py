"""An event loop whose clock jumps to the next timer when nobody has anything to do.

Hours of waiting pass in no time, and a schedule drawn from a seed comes out the same each time:
nothing depends on the wall clock, on threads, or on where an object lies in memory.
`time.monotonic` is the loop's clock meanwhile, and `time.sleep` moves it. Every turn of the loop
costs `TURN_SECONDS`, so that who works without a pause gets older too.
"""

import asyncio
import contextlib
import contextvars
import gc
import heapq
import itertools
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar
from unittest import mock

TURN_SECONDS = 2e-5

T = TypeVar("T")


class _Loop(asyncio.SelectorEventLoop):
    """Nobody has sockets, so that there is nothing to select: only the time passes.

    Half of what asyncio's own turn costs, and most of a simulation is turns of the loop. What a
    callback raises ends the run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self._timers: list[tuple[float, int, _Handle]] = []
        self._serial = itertools.count()
        self.set_task_factory(lambda loop, coro, **named: _Task(coro, loop=loop, **named))

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> "_Handle":
        handle = _Handle(callback, args, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> "_Handle":
        handle = _Handle(callback, args, context)
        heapq.heappush(self._timers, (when, next(self._serial), handle))
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> "_Handle":
        return self.call_at(self.now + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        timers, ready = self._timers, self._ready  # type: ignore[attr-defined]
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)
        self.now += TURN_SECONDS
        if not ready:
            assert timers, "everybody waits, and nothing will ever happen"
            self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.is_cancelled:
                handle.context.run(handle.callback, *handle.args)

    def sleep(self, seconds: float) -> None:
        """In place of `time.sleep`."""
        self.now += seconds


class _Handle:
    """As asyncio's own, as far as anybody asks."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context or contextvars.copy_context()
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        return self.is_cancelled


def _nothing() -> None: ...


class _Task(asyncio.Task[Any]):
    """Hashed by the order of creation: a set of tasks, as a TaskGroup has, is in that order."""

    serial = itertools.count()

    def __init__(self, *args: Any, **options: Any) -> None:
        self._number = next(_Task.serial)
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`; no threads, no sockets."""
    _Task.serial = itertools.count()
    with asyncio.Runner(loop_factory=_Loop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, _Loop)
        with (
            mock.patch.object(time, "monotonic", loop.time),
            mock.patch.object(time, "sleep", loop.sleep),
            _no_secrets(),
            _no_collection(),
        ):
            return runner.run(main)


@contextlib.contextmanager
def _no_secrets() -> Iterator[None]:
    """Names and keys are the same in every run."""
    serial = itertools.count()
    with (
        mock.patch.object(secrets, "token_hex", lambda _: f"{next(serial):03d}"),  # noqa: PT008
        mock.patch.object(secrets, "token_bytes", bytes),
    ):
        yield


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """What a collection finalises would happen at any time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
