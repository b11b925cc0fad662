"""How a GPU is got ready, on a device that is late: what is tried, measured and captured."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from common.config import WorkerSettings
from common.messages import Ending, RequestId
from gpu_worker import device_preparation
from gpu_worker.buckets import graph_shapes, is_decoding
from gpu_worker.device_preparation import DevicePreparation
from gpu_worker.engine import Capacity
from gpu_worker.fields import Shape
from gpu_worker.kv_cache import KVCache
from gpu_worker.llama import Llama
from gpu_worker.model_engine import ModelEngine
from gpu_worker.parallel import ALONE
from gpu_worker.sampling_ops import torch_sampling_ops
from tests.gpu_worker.deferred import DeferredStream
from tests.gpu_worker.driving import AheadDriver, Driver, make_request
from tests.gpu_worker.tiny import CPU, load, make_engine, make_reference

CAPACITY = Capacity("tiny", "device", 0, 8, 512, 48, 16)
BOUNDS = (48, 16, 512, 8)


@dataclass
class Prepared:
    preparation: DevicePreparation
    stream: DeferredStream
    shown: list[tuple[str, float]] = field(default_factory=list)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    path: Path = tmp_path_factory.mktemp("model")
    make_reference("llama").save_pretrained(path)
    return load(path)


def prepare(model: Llama, settings: WorkerSettings) -> Prepared:
    stream = DeferredStream()
    shown: list[tuple[str, float]] = []
    preparation = DevicePreparation(
        model,
        settings,
        ALONE,
        CPU,
        stream,
        torch_sampling_ops(),
        lambda what, share: shown.append((what, share)),
    )
    return Prepared(preparation, stream, shown)


def engine_of(prepared: Prepared) -> ModelEngine:
    model = prepared.preparation.model
    capacity = replace(CAPACITY, num_blocks=160)
    cache = KVCache.allocate(model.config, 160, 8, model.embedding.dtype, CPU)
    return ModelEngine(prepared.preparation.processor(cache, capacity), capacity)


def test_a_prepared_engine_answers(model: Llama) -> None:
    prepared = prepare(model, WorkerSettings())
    assert prepared.preparation.measure(CAPACITY) >= 0
    requests = [make_request(f"r.{i}", list(range(5, 8 + i)), Ending(9)) for i in range(12)]
    expected = Driver(make_engine(model)).run(requests)
    requests = [make_request(f"r.{i}", list(range(5, 8 + i)), Ending(9)) for i in range(12)]
    assert AheadDriver(engine_of(prepared)).run(requests) == expected
    assert prepared.stream.num_replays > 8
    kinds = list(dict.fromkeys(what for what, _ in prepared.shown))
    assert kinds == ["compiling kernels", "capturing graphs"]
    for kind in kinds:
        shares = [share for what, share in prepared.shown if what == kind]
        assert shares == sorted(shares)
        assert (shares[0], shares[-1]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("settings", "captured"),
    [
        (WorkerSettings(), len(graph_shapes(*BOUNDS))),
        (WorkerSettings(graph_tokens=8), len(graph_shapes(8, *BOUNDS[1:]))),
        (WorkerSettings(cuda_graphs="off"), 0),
        (WorkerSettings(warm_up_seconds=0), 0),
        (WorkerSettings(warm_up_seconds=0, cuda_graphs="on"), len(graph_shapes(*BOUNDS))),
    ],
    ids=["auto", "smaller", "off", "no-time", "on"],
)
def test_what_is_captured(model: Llama, settings: WorkerSettings, captured: int) -> None:
    prepared = prepare(model, settings)
    assert len(engine_of(prepared)._processor.graphs) == captured  # type: ignore[attr-defined]


def test_when_time_is_up_the_rest_runs_without(
    model: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds: Iterator[float] = iter(range(100))
    monkeypatch.setattr(device_preparation.time, "monotonic", lambda: float(next(seconds)))
    prepared = prepare(model, WorkerSettings(warm_up_seconds=6))
    engine = engine_of(prepared)
    monkeypatch.undo()
    shapes = graph_shapes(*BOUNDS)
    assert list(engine._processor.graphs._graphs) == shapes[:5]  # type: ignore[attr-defined]
    assert prepared.shown[-1] == ("capturing graphs", 1.0)
    answers = AheadDriver(engine).run([make_request("r.0", [1, 2, 3], Ending(4))])
    alone = Driver(make_engine(model)).run([make_request("r.0", [1, 2, 3], Ending(4))])
    assert answers[RequestId("r.0")] == alone[RequestId("r.0")]


def test_graphs_are_measured_by_two_of_each_kind(
    model: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of a kind takes 1000 bytes and more for its size, each other one 10."""
    prepared = prepare(model, WorkerSettings())
    shapes = graph_shapes(*BOUNDS)
    taken: list[Shape] = []

    def free(_device: object) -> int:
        first = [shape for i, shape in enumerate(taken) if i % 2 == 0]
        return 10**6 - 1000 * len(first) - 10 * (len(taken) - len(first))

    capture = DeferredStream.capture

    def count(self: DeferredStream, work: object) -> object:
        taken.append(Shape(0, 0, 0, 0))
        return capture(self, work)  # type: ignore[arg-type]

    monkeypatch.setattr(DeferredStream, "capture", count)
    monkeypatch.setattr(device_preparation.memory, "free_bytes", free)
    monkeypatch.setattr(device_preparation.memory, "resident_bytes", lambda _device: 500)
    monkeypatch.setattr(device_preparation.memory, "peak_bytes", lambda _device: 720)
    num_decoding = sum(map(is_decoding, shapes))
    graphs = 2 * 1000 + 10 * (num_decoding - 1) + 10 * (len(shapes) - num_decoding - 1)
    assert prepared.preparation.measure(CAPACITY) == 220 + graphs
    assert len(taken) == 4
