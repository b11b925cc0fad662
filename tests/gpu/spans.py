"""Streams that note when the device began and ended each piece of work; it idles in between."""

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch

from gpu_worker.device import CudaStream, Stream
from tests.gpu_worker.deferred import DeferredStream

Span = tuple[float, float]  # seconds, from when noting began


class TimedStream(Stream, Protocol):
    def note(self) -> None:
        """Forget what was noted; note from now on."""
        ...

    def spans(self) -> list[Span]:
        """Of all work since, in order; waits for it, and ends noting."""
        ...


class TimedCudaStream(CudaStream):
    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] | None = None

    def run(self, work: Callable[[], None]) -> None:
        events = self._events
        if events is None:
            super().run(work)
            return
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(self._stream)
        super().run(work)
        stop.record(self._stream)
        events.append((start, stop))

    def note(self) -> None:
        self._events = []

    def spans(self) -> list[Span]:
        events, self._events = list(self._events or ()), None  # others may still be launching
        self.synchronize()
        first = events[0][0]
        return [(first.elapsed_time(a) / 1e3, first.elapsed_time(b) / 1e3) for a, b in events]


class TimedDeferredStream(DeferredStream):
    """Times are the host's, when it does the work."""

    def __init__(self) -> None:
        super().__init__()
        self._spans: list[Span] | None = None

    def run(self, work: Callable[[], None]) -> None:
        super().run(partial(self._noted, work))

    def note(self) -> None:
        self._spans = []

    def spans(self) -> list[Span]:
        self.synchronize()
        spans, self._spans = self._spans or [], None
        return spans

    def _noted(self, work: Callable[[], None]) -> None:
        began = time.perf_counter()
        work()
        if self._spans is not None:
            self._spans.append((began, time.perf_counter()))


def idle_share(spans: list[Span]) -> float:
    """Of the time from the first piece of work to the last, what lies between pieces."""
    gaps = (after[0] - before[1] for before, after in pairwise(spans))
    whole = spans[-1][1] - spans[0][0]
    return sum(max(0.0, gap) for gap in gaps) / whole if whole > 0 else 0.0
