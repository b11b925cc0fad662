"""CUDA graphs of the layers, for the shapes of steps that `buckets` names."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import structlog

from gpu_worker.buckets import cheapest
from gpu_worker.device import Graph, Stream, Tensors
from gpu_worker.engine import Progress
from gpu_worker.fields import Shape

log = structlog.get_logger()

Work = Callable[[Shape], Callable[[], Tensors]]  # a shape to what is captured for it


class Graphs:
    """None at first; a step whose shape none of them holds runs without."""

    def __init__(self, stream: Stream, work: Work) -> None:
        self._stream = stream
        self._work = work
        self._graphs: dict[Shape, Graph] = {}
        self._find = lru_cache(maxsize=4096)(lambda step: cheapest(self._graphs, step))

    def __len__(self) -> int:
        return len(self._graphs)

    def capture(
        self, shapes: Sequence[Shape], has_time: Callable[[], bool], progress: Progress
    ) -> None:
        """Capture `shapes` in their order, while there is time; asked before each of them."""
        for count, shape in enumerate(shapes):
            progress("capturing graphs", count / len(shapes))
            if not has_time():
                log.warning(
                    "no time to capture all graphs: other steps are launched kernel by kernel",
                    captured=count,
                    wanted=len(shapes),
                )
                break
            self._graphs[shape] = self._stream.capture(self._work(shape))
        self._find.cache_clear()
        progress("capturing graphs", 1.0)

    def clear(self) -> None:
        """Drop all graphs, and their memory."""
        self._graphs.clear()
        self._find.cache_clear()

    def find(self, step: Shape) -> tuple[Shape, Graph] | None:
        """The graph that a step of this shape runs in, and the shape that it is padded to."""
        least = Shape(step.num_tokens, step.num_sequences, 0, step.table_width)
        shape = self._find(least)
        return None if shape is None else (shape, self._graphs[shape])
