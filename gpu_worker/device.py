"""A device's queue of work as the worker uses it: a CUDA stream, or in tests one that runs late.

Whatever is launched is done in that order, later than it is launched, and nobody waits for it but
by an event. So what launched work reads must not change until then: device memory, which only
launched work writes; pinned memory, until an event says that it was read; and plain values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: kernels are compiled for pointers that vectors of 16 can be loaded from

Tensors = tuple[Tensor, ...]


class Event(Protocol):
    def synchronize(self) -> None:
        """Return when all that was launched before is done, on any thread. Raises if it failed."""
        ...


class Graph(Protocol):
    """Work that was captured, over the same memory each time."""

    @property
    def outputs(self) -> Tensors:
        """Where a replay leaves its results, until this or another graph is replayed."""
        ...

    def replay(self) -> None:
        """Do the work again; to be called within `Stream.run`."""
        ...


class Stream(Protocol):
    def empty(self, size: int | tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Device memory; what it held last may still be read by work launched before."""
        ...

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        """Host memory that the device copies from and to on its own."""
        ...

    def run(self, work: Callable[[], None]) -> None:
        """Launch work."""
        ...

    def record(self) -> Event:
        """Of all that is launched until now."""
        ...

    def capture(self, work: Callable[[], Tensors]) -> Graph:
        """Do the work once, to have all in place that it needs, and capture it.

        What it does may depend on shapes and on the contents of device memory only.
        """
        ...

    def synchronize(self) -> None:
        """Return when the device has nothing to do. Raises what went wrong on it."""
        ...

    def release(self) -> None:
        """Give back what memory is kept for nobody."""
        ...


class CudaStream:
    """A stream of its own; all of its graphs share one pool of memory.

    A thread begins on the first GPU, and what it does there, be it to wait for another one, takes
    half a GiB of it: so each thread that uses a stream stays on the stream's device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = self._stream.device
        self._pool = torch.cuda.graph_pool_handle()

    def empty(self, size: int | tuple[int, ...], dtype: torch.dtype) -> Tensor:
        with self._entered():  # which the allocator notes
            return torch.empty(size, dtype=dtype, device=self._device)

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype, pin_memory=True)

    def run(self, work: Callable[[], None]) -> None:
        with self._entered(), torch.inference_mode():
            work()

    def record(self) -> "_CudaEvent":
        # Who waits sleeps, rather than to spin on a core.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return _CudaEvent(event, self._device)

    def capture(self, work: Callable[[], Tensors]) -> "_CudaGraph":
        with self._entered(), torch.inference_mode():
            work()  # compiles kernels, and makes libraries take their workspaces
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # What other threads do meanwhile, as NCCL's that looks after its work, is no mistake.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                outputs = work()
            finally:
                graph.capture_end()
        return _CudaGraph(graph, outputs)

    def synchronize(self) -> None:
        """Of all streams: what was loaded on another one is there, too."""
        torch.cuda.synchronize(self._device)

    def release(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        # torch refuses a pool whose graphs are all gone, if something of it is left.
        self._pool = torch.cuda.graph_pool_handle()

    def _entered(self) -> torch.cuda.StreamContext:
        torch.cuda.set_device(self._device)
        return torch.cuda.stream(self._stream)


@dataclass(frozen=True)
class _CudaEvent:
    event: torch.cuda.Event
    device: torch.device

    def synchronize(self) -> None:
        torch.cuda.set_device(self.device)
        self.event.synchronize()


@dataclass(frozen=True)
class _CudaGraph:
    graph: torch.cuda.CUDAGraph
    outputs: Tensors

    def replay(self) -> None:
        self.graph.replay()


def send(stream: Stream, arrays: Sequence[npt.NDArray[Any]]) -> list[Tensor]:
    """Arrays to the device, with one copy, in memory of their own."""
    starts, stop = [], 0
    for array in arrays:
        starts.append(stop)
        stop += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    pinned, target = stream.pinned(stop, torch.uint8), stream.empty(stop, torch.uint8)
    memory, sent = pinned.numpy(), []
    for start, array in zip(starts, arrays, strict=True):
        np.ndarray(array.shape, array.dtype, memory, start)[...] = array
        part = target[start : start + array.nbytes]
        sent.append(part.view(torch.from_numpy(array[:0]).dtype).view(array.shape))
    # The allocator of pinned memory gives it to nobody else before the copy is done.
    stream.run(lambda: copy(target, pinned))
    return sent


def copy(target: Tensor, source: Tensor) -> None:
    """Between pinned memory and the device's; to be called within `run`."""
    target.copy_(source, non_blocking=True)
