"""The machine that is checked: a GPU, or for a dry run this CPU in its place.

All that only CUDA can do is in this file and in `spans.py`; whatever else there is in this package
runs alike on both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from common.config import WorkerSettings
from gpu_worker.device import CudaStream, Stream
from gpu_worker.memory import resident_bytes
from gpu_worker.ops import Ops, torch_ops
from gpu_worker.sampling_ops import SamplingOps, torch_sampling_ops
from tests.gpu.clock import SWEPT_BYTES, Clock, Run
from tests.gpu.spans import TimedCudaStream, TimedDeferredStream, TimedStream
from tests.gpu_worker.deferred import DeferredStream

T = TypeVar("T")


class Machine(Protocol):
    @property
    def device(self) -> torch.device: ...

    @property
    def is_dry(self) -> bool: ...

    @property
    def model(self) -> str:
        """Whose tokens are compared, beside those of random models: `embedded`, or a path."""
        ...

    def describe(self) -> dict[str, Any]: ...

    def pick(self, real: T, dry: T) -> T:
        """What is measured, or something tiny in its place."""
        ...

    def ops(self, *, deterministic: bool = False) -> Ops: ...

    def sampling_ops(self) -> SamplingOps: ...

    def stream(self) -> Stream: ...

    def timed_stream(self) -> TimedStream: ...

    def seconds(self, run: Run) -> float:
        """What `run` takes, launched in a row of others, when nothing it reads is in a cache."""
        ...

    def pinned(self, tensor: Tensor) -> Tensor:
        """A copy in memory of the host that kernels reach."""
        ...

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as torch.compile makes it."""
        ...

    def synchronize(self) -> None: ...

    def held_bytes(self) -> int:
        """Memory of the device that tensors take."""
        ...


@dataclass(frozen=True)
class Gpu:
    model: str = "embedded"
    is_dry: bool = False

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)

    def describe(self) -> dict[str, Any]:
        found = torch.cuda.get_device_properties(self.device)
        return {
            "device": found.name,
            "processors": found.multi_processor_count,
            "memory_gib": round(found.total_memory / (1 << 30), 1),
            "cuda": torch.version.cuda or torch.version.hip,
            "capability": ".".join(map(str, torch.cuda.get_device_capability(self.device))),
        }

    def pick(self, real: T, dry: T) -> T:
        return real

    def ops(self, *, deterministic: bool = False) -> Ops:
        from gpu_worker.triton_ops import triton_ops

        return triton_ops(deterministic)

    def sampling_ops(self) -> SamplingOps:
        from gpu_worker.triton_sampling_ops import triton_sampling_ops

        return triton_sampling_ops()

    def stream(self) -> Stream:
        return CudaStream(self.device)

    def timed_stream(self) -> TimedStream:
        return TimedCudaStream(self.device)

    def seconds(self, run: Run) -> float:
        return self._clock.seconds(run)

    def pinned(self, tensor: Tensor) -> Tensor:
        return tensor.cpu().pin_memory()

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, dynamic=False, fullgraph=True)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.device)

    @cached_property
    def _clock(self) -> Clock:
        return Clock(self.timed_stream(), self.device, SWEPT_BYTES, repeats=7)


@dataclass(frozen=True)
class Cpu:
    """Kernels run in Triton's interpreter where they are called, models with the references."""

    model: str = "embedded"
    is_dry: bool = True

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def describe(self) -> dict[str, Any]:
        return {"device": "cpu, dry", "memory_gib": resident_bytes(self.device) / (1 << 30)}

    def pick(self, real: T, dry: T) -> T:
        return dry

    def ops(self, *, deterministic: bool = False) -> Ops:
        return torch_ops()

    def sampling_ops(self) -> SamplingOps:
        return torch_sampling_ops()

    def stream(self) -> Stream:
        return DeferredStream()

    def timed_stream(self) -> TimedStream:
        return TimedDeferredStream()

    def seconds(self, run: Run) -> float:
        return self._clock.seconds(run)

    def pinned(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, dynamic=False, fullgraph=True, backend="eager")

    def synchronize(self) -> None: ...

    def held_bytes(self) -> int:
        return resident_bytes(self.device)

    @cached_property
    def _clock(self) -> Clock:
        return Clock(self.timed_stream(), self.device, 4096, repeats=1)


def choose(model: str, *, dry: bool) -> Machine:
    if dry:
        return Cpu(model)
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU here: take --dry")
    from gpu_worker.triton_build import set_compiler  # not every machine has triton

    machine = Gpu(model)
    torch.cuda.set_device(machine.device)
    set_compiler(Path(WorkerSettings().data_dir).absolute() / "kernels")
    return machine
