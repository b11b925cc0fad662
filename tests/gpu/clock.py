"""How long kernels take, by a stream's own times, with the device's second cache swept in between.

Of short kernels most of the time between two events is the host's, and what an event and the start
of a graph cost. So runs and sweeps are captured together, as often as gives a few milliseconds, and
from their time that of the sweeps alone is taken: what is left is what a run takes when it follows
other kernels of a graph, as in a step.
"""

import statistics
from collections.abc import Callable
from typing import Any

import torch

from tests.gpu.spans import TimedStream

SWEPT_BYTES = 256 << 20  # several times the second cache of any GPU up to now
GRAPH_SECONDS = 4e-3  # of runs, in one graph
MOST_RUNS = 30

Run = Callable[[], Any]


class Clock:
    def __init__(self, stream: TimedStream, device: torch.device, swept_bytes: int, repeats: int):
        self._stream, self._repeats = stream, repeats
        # Reading leaves nothing that must be written back while the next kernel is timed.
        self._swept = torch.ones(swept_bytes // 4, device=device)

    def seconds(self, run: Run) -> float:
        """The median over several replays. `run` may not wait for the device."""
        self._stream.synchronize()  # its inputs were made on another stream
        self._elapsed(run)  # compiles it
        once = self._elapsed(run)
        count = max(1, min(MOST_RUNS, int(GRAPH_SECONDS / max(once, 1e-6))))
        try:
            return max(0.0, self._median(run, count)) / count
        finally:
            self._stream.release()  # the graphs' memory

    def _median(self, run: Run, count: int) -> float:
        """Of `count` runs, without their sweeps."""
        runs = self._stream.capture(lambda: self._work(run, count)).replay
        sweeps = self._stream.capture(lambda: self._work(None, count)).replay
        pairs = [(self._elapsed(runs), self._elapsed(sweeps)) for _ in range(self._repeats)]
        return statistics.median(both - swept for both, swept in pairs)

    def _work(self, run: Run | None, count: int) -> tuple[()]:
        for _ in range(count):
            self._swept.sum()
            if run is not None:
                run()
        return ()

    def _elapsed(self, work: Run) -> float:
        self._stream.note()
        self._stream.run(work)
        [(start, stop)] = self._stream.spans()
        return stop - start
