"""How a GPU is got ready: kernels compiled, memory measured, graphs captured.

Steps of padding stand for real ones: which kernels a step needs and how much memory it takes
depends on shapes alone. So a cache of one block does, while nobody knows how many there can be.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import structlog
import torch

from common.config import WorkerSettings
from gpu_worker import memory
from gpu_worker.buckets import graph_shapes, is_decoding, largest_shape, warm_up_shapes
from gpu_worker.device import CudaStream, Stream
from gpu_worker.device_processor import DeviceProcessor
from gpu_worker.edits import Edits
from gpu_worker.engine import Capacity, Progress, no_progress
from gpu_worker.fields import Array, Shape
from gpu_worker.kv_cache import KVCache
from gpu_worker.llama import Llama
from gpu_worker.parallel import Group
from gpu_worker.sampling_ops import SamplingOps

log = structlog.get_logger()


@dataclass(frozen=True)
class DevicePreparation:
    model: Llama
    settings: WorkerSettings
    group: Group  # whose ranks do all of this alike
    device: torch.device
    stream: Stream
    sampling_ops: SamplingOps
    progress: Progress

    @classmethod
    def on_gpu(
        cls,
        model: Llama,
        settings: WorkerSettings,
        group: Group,
        device: torch.device,
        progress: Progress,
    ) -> "DevicePreparation":
        from gpu_worker.triton_sampling_ops import triton_sampling_ops  # needs triton

        stream, ops = CudaStream(device), triton_sampling_ops()
        return cls(model, settings, group, device, stream, ops, progress)

    def measure(self, capacity: Capacity) -> int:
        """The largest step, and the graphs; compiles kernels on the way."""
        capacity = replace(capacity, num_blocks=1)
        dtype = self.model.embedding.dtype
        config, size = self.model.config, capacity.block_size
        cache = KVCache.allocate(config, 1, size, dtype, self.device)
        processor = self._make(cache, capacity)
        self._compile(processor, capacity)
        before = memory.resident_bytes(self.device)
        memory.forget_peak(self.device)
        self._try(processor, largest_shape(*_bounds(capacity)), draws=True)
        step_bytes = max(0, memory.peak_bytes(self.device) - before)
        self.stream.release()
        graph_bytes = self._measure_graphs(processor, self._graph_shapes(capacity))
        del processor
        gc.collect()  # now, and not while a graph is captured
        self.stream.release()
        return step_bytes + graph_bytes

    def processor(self, cache: KVCache, capacity: Capacity) -> DeviceProcessor:
        processor = self._make(cache, capacity)
        if shapes := self._graph_shapes(capacity):
            is_bounded = self.settings.cuda_graphs == "auto"
            has_time = self._clock() if is_bounded else lambda: True
            processor.graphs.capture(shapes, has_time, self.progress)
        return processor

    def _make(self, cache: KVCache, capacity: Capacity) -> DeviceProcessor:
        return DeviceProcessor(self.model, cache, capacity, self.stream, self.sampling_ops)

    def _compile(self, processor: DeviceProcessor, capacity: Capacity) -> None:
        """Run each kernel once, while time is left: it is compiled when it runs first."""
        shapes, has_time = warm_up_shapes(*_bounds(capacity)), self._clock()
        for count, shape in enumerate(shapes):
            self.progress("compiling kernels", count / len(shapes))
            if not has_time():
                log.warning("no time to compile all kernels: others are when they are needed")
                break
            self._try(processor, shape, draws=count % 2 == 0)
        self.progress("compiling kernels", 1.0)

    def _try(self, processor: DeviceProcessor, shape: Shape, *, draws: bool) -> None:
        processor.try_shape(shape, draws=draws, edits=_no_edits(shape.num_sampling))

    def _measure_graphs(self, processor: DeviceProcessor, shapes: Sequence[Shape]) -> int:
        """The first of a kind takes the memory that the others find room in; those, what each has
        for itself. The first two of each kind tell; they are captured again over the real cache."""
        total = 0
        for kind in (True, False):
            alike = [shape for shape in shapes if is_decoding(shape) == kind]
            taken = [self._take_graph(processor, shape) for shape in alike[:2]]
            total += sum(taken) + max(0, len(alike) - 2) * (taken or [0])[-1]
        processor.graphs.clear()
        return total

    def _take_graph(self, processor: DeviceProcessor, shape: Shape) -> int:
        """Bytes that are less free with this graph."""
        before = memory.free_bytes(self.device)
        processor.graphs.capture([shape], lambda: True, no_progress)
        return max(0, before - memory.free_bytes(self.device))

    def _graph_shapes(self, capacity: Capacity) -> list[Shape]:
        if self.settings.cuda_graphs == "off":
            return []
        max_tokens, *others = _bounds(capacity)
        return graph_shapes(min(max_tokens, self.settings.graph_tokens), *others)

    def _clock(self) -> Callable[[], bool]:
        """Whether time is left, from now on; all ranks give the same answer."""
        began, seconds = time.monotonic(), self.settings.warm_up_seconds
        return lambda: self.group.smallest(int(time.monotonic() - began < seconds)) > 0


def _bounds(capacity: Capacity) -> tuple[int, int, int, int]:
    """What bounds the shapes of steps; see `buckets`."""
    return (
        capacity.max_step_tokens,
        capacity.max_rows,
        capacity.max_request_tokens,
        capacity.block_size,
    )


def _no_edits(num_rows: int) -> Edits[Array]:
    """Penalties that change nothing, for what it takes to look for them."""
    starts, none = np.zeros(num_rows + 1, np.int32), np.zeros(0, np.int32)
    ones, zeros = np.ones(num_rows, np.float32), np.zeros(num_rows, np.float32)
    addend = np.zeros(0, np.float32)
    return Edits(starts, none, none, ones, zeros, zeros, starts, none, addend)
