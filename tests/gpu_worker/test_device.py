"""CUDA's stream without CUDA: on which device threads are, and where graphs take their memory."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from gpu_worker.device import CudaStream


@dataclass(frozen=True)
class FakeStream:
    device: torch.device

    def synchronize(self) -> None: ...


@dataclass
class FakeCuda:
    """Knows what CUDA does with devices: a thread begins on the first one, and takes memory of
    whichever it is on when it does something."""

    touched: set[int] = field(default_factory=set)
    captures: list[tuple[object, str]] = field(default_factory=list)  # pool, and mode
    current: threading.local = field(default_factory=threading.local)

    def set_device(self, device: torch.device) -> None:
        self.current.index = device.index
        self.touch()

    def touch(self) -> None:
        self.touched.add(getattr(self.current, "index", 0))

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """As torch has it: the device before is current again behind it."""
        before = torch.device("cuda", getattr(self.current, "index", 0))
        self.set_device(stream.device)
        try:
            yield
        finally:
            self.set_device(before)

    def synchronize(self, _device: torch.device) -> None:
        self.touch()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()

    class Event:
        def __init__(self, blocking: bool) -> None:
            assert blocking

        def record(self, stream: FakeStream) -> None:
            fake.touched.add(stream.device.index)

        def synchronize(self) -> None:
            fake.touch()

    class Graph:
        def capture_begin(self, pool: object, capture_error_mode: str) -> None:
            fake.captures.append((pool, capture_error_mode))

        def capture_end(self) -> None: ...

    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", fake.stream)
    monkeypatch.setattr(torch.cuda, "set_device", fake.set_device)
    monkeypatch.setattr(torch.cuda, "synchronize", fake.synchronize)
    monkeypatch.setattr(torch.cuda, "empty_cache", fake.touch)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    return fake


def on_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_threads_stay_on_the_device_of_the_stream(cuda: FakeCuda) -> None:
    """The engine's, and the one that waits for its steps."""
    stream = CudaStream(torch.device("cuda:1"))
    events = []

    def launch() -> None:
        stream.run(cuda.touch)
        events.append(stream.record())
        cuda.touch()

    on_a_thread(launch)
    on_a_thread(events[0].synchronize)
    assert cuda.touched == {1}


def test_graphs_share_a_pool_until_it_is_released(cuda: FakeCuda) -> None:
    stream = CudaStream(torch.device("cuda:0"))
    for _ in range(2):
        stream.capture(lambda: ())
    stream.release()
    stream.capture(lambda: ())
    (first, _), (second, _), (third, _) = cuda.captures
    assert first is second
    assert third is not first
    assert {mode for _, mode in cuda.captures} == {"thread_local"}
