"""A stream on the CPU that does nothing before somebody waits: mistakes of asynchrony show.

Memory that is written too early, a result that is read before it is there, a token that is used
before it is known: what is late on a device by chance is late here always. All memory is poisoned
when it is made, and the inputs of a step as soon as it is done.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.device import Tensors

POISON = 0x7F  # as every byte: large integers; of floats, NaN


class DeferredStream:
    """With `late` false, all is done as it is launched: what comes too late shows then."""

    def __init__(self, *, late: bool = True) -> None:
        self._late = late
        self._work: deque[Callable[[], None]] = deque()
        self._launched = self._done = 0
        self._error: Exception | None = None
        self._memory: list[Tensor] = []  # of bytes: inputs of steps
        self._lock = threading.RLock()
        self.num_replays = 0

    def empty(self, size: int | tuple[int, ...], dtype: torch.dtype) -> Tensor:
        memory = poisoned(size, dtype)
        if dtype == torch.uint8:
            self._memory.append(memory)
        return memory

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        return poisoned(size, dtype)

    def run(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self._launched += 1
        if not self._late:
            self.work_until(self._launched)

    def record(self) -> "DeferredEvent":
        """Nothing reads the inputs of a step behind it."""
        self.run(self._poison)
        return DeferredEvent(self, self._launched)

    def capture(self, work: Callable[[], Tensors]) -> "DeferredGraph":
        self.synchronize()
        with torch.inference_mode():
            return DeferredGraph(self, work, tuple(torch.empty_like(x) for x in work()))

    def synchronize(self) -> None:
        self.work_until(self._launched)

    def release(self) -> None: ...

    def work_until(self, count: int) -> None:
        """Do all that was launched up to then; what failed once fails whoever asks."""
        with self._lock, torch.inference_mode():
            while self._done < count and self._error is None:
                self._done += 1
                try:
                    self._work.popleft()()
                except Exception as error:  # noqa: BLE001 - raised below, each time
                    self._error = error
            if self._error is not None:
                raise self._error

    def _poison(self) -> None:
        for memory in self._memory:
            memory.fill_(POISON)
        self._memory = self._memory[:1]  # the others are those of one step


@dataclass(frozen=True)
class DeferredEvent:
    stream: DeferredStream
    count: int

    def synchronize(self) -> None:
        self.stream.work_until(self.count)


@dataclass(frozen=True)
class DeferredGraph:
    """Does the work again over the same memory; its results are where they always are."""

    stream: DeferredStream
    work: Callable[[], Tensors]
    outputs: Tensors

    def replay(self) -> None:
        self.stream.num_replays += 1
        for output, result in zip(self.outputs, self.work(), strict=True):
            output.copy_(result)


def poisoned(size: int | tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return (
        torch.full((size,) if isinstance(size, int) else size, 0, dtype=dtype)
        .view(torch.uint8)
        .fill_(POISON)
        .view(dtype)
    )
