"""From settings to an engine: sizes that come out, and what is refused."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from common.config import WorkerSettings
from common.messages import Ending, RequestId
from gpu_worker import memory, preparation
from gpu_worker.backend import choose_device
from gpu_worker.engine import EngineError, ModelError
from gpu_worker.kv_cache import fit_blocks, fit_host_blocks
from gpu_worker.loading import cpu_cache_bytes, load_engine
from gpu_worker.ops import torch_ops
from gpu_worker.preparation import HostPreparation
from gpu_worker.weights import load_model, open_weights, weight_bytes
from tests.gpu_worker.driving import Driver, make_request
from tests.gpu_worker.tiny import CPU, make_reference

BLOCK_BYTES = 2 * 3 * 2 * 16 * 16 * 4  # K and V, layers, heads, tokens, head size, float32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-model")
    make_reference("llama").save_pretrained(path)
    return path


def settings(folder: Path, **changes: Any) -> WorkerSettings:
    values: dict[str, Any] = {
        "model": str(folder),
        "data_dir": str(folder / "data"),
        "dtype": "float32",
        "backend": "cpu",
        "kernels": "torch",
        "threads": 1,
        "kv_bytes": 100 * BLOCK_BYTES,
        "max_rows": 8,
    }
    return WorkerSettings(**values | changes)


def test_a_loaded_engine_answers(folder: Path) -> None:
    done: list[tuple[str, float]] = []
    engine = load_engine(settings(folder), lambda what, share: done.append((what, share)))
    capacity = engine.capacity
    assert capacity.model == folder.name
    assert capacity.num_blocks == 100
    assert capacity.num_host_blocks == (1 << 30) // BLOCK_BYTES
    assert capacity.max_request_tokens == 512
    assert done[-1] == ("warming up", 1.0)
    answers = Driver(engine).run([make_request("r.0", [1, 2, 3], Ending(max_tokens=4))])
    assert len(answers[RequestId("r.0")]) == 4


@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_weights_in_eight_bits(folder: Path, kernels: str) -> None:
    engine = load_engine(settings(folder, quantization="int8", kernels=kernels))
    assert engine.capacity.device == f"cpu ({kernels}, int8 kernels)"
    answers = Driver(engine).run([make_request("r.0", [1, 2, 3], Ending(max_tokens=4))])
    assert len(answers[RequestId("r.0")]) == 4


def test_weights_in_eight_bits_need_less_room(folder: Path) -> None:
    weights = open_weights(folder)
    plain, int8 = (
        weight_bytes(weights, torch_ops(quantization), torch.float32)
        for quantization in ("none", "int8")
    )
    outer = weights.config.vocab_size * weights.config.width * (1 if weights.config.tied else 2)
    assert plain - int8 == 3 * (plain // 4 - outer)


@pytest.mark.parametrize(
    ("changes", "blocks", "longest"),
    [
        pytest.param({"num_blocks": 7}, 7, 112, id="blocks-win-over-bytes"),
        pytest.param({"max_model_len": 200}, 100, 200, id="shorter-than-the-model"),
        pytest.param({"max_step_tokens": 700}, 100, 512, id="a-step-longer-than-a-request"),
        pytest.param({"max_step_tokens": 3}, 100, 512, id="a-step-with-few-tokens"),
        pytest.param(
            {"kv_bytes": 0, "dtype": "bfloat16"}, (448 << 21) // BLOCK_BYTES, 512, id="448MiB"
        ),
    ],
)
def test_capacity(folder: Path, changes: dict[str, Any], blocks: int, longest: int) -> None:
    capacity = load_engine(settings(folder, **changes)).capacity
    assert (capacity.num_blocks, capacity.max_request_tokens) == (blocks, longest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"max_model_len": 513}, "max-model-len 513.* 512", id="too-long"),
        pytest.param({"kv_bytes": 1}, "raise --kv-bytes", id="not-one-block"),
        pytest.param({"kv_bytes": 1 << 50}, "lower --kv-bytes", id="too-much"),
        pytest.param({"num_blocks": 1 << 40}, "lower --kv-bytes", id="too-many"),
        pytest.param({"device": "cuda"}, "exclude each other", id="cpu-on-cuda"),
    ],
)
def test_settings_that_cannot_be(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        load_engine(settings(folder, **changes))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "changes",
    [
        {"backend": "triton"},
        {"backend": "auto", "device": "cuda:1"},
        {"device": "cuda", "backend": "triton"},
    ],
)
def test_a_gpu_that_is_not_there(folder: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="no GPU"):
        load_engine(settings(folder, **changes))


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such directory or file"):
        load_engine(settings(tmp_path / "nothing"))


def test_auto_takes_the_cpu_where_there_is_no_gpu(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(settings(folder, backend="auto")).type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device(settings(folder, backend="auto")).type == "cuda"
    assert choose_device(settings(folder, backend="auto", device="cpu")).type == "cpu"
    assert choose_device(settings(folder, backend="triton", device="cuda:1")).index == 1


def test_a_model_that_does_not_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _device: 400_000)
    with pytest.raises(EngineError, match=r"weights take .* as float32, and 0\.00 GiB are free"):
        load_engine(settings(folder))


def test_a_step_takes_as_many_tokens_as_are_quick_enough(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the best of the trials: a machine may be busy with something else for a while."""
    took = [0.0, 0.4, 0.0, 0.05, 0.0, 9.0]  # from one look at the clock to the next
    clock = itertools.accumulate(took)
    model = load_model(open_weights(folder), torch_ops(), torch.float32, CPU, 512)
    monkeypatch.setattr(preparation.time, "perf_counter", lambda: next(clock))
    assert HostPreparation(model).step_tokens(0.08) == 192  # 128 take 0.05 s


@pytest.mark.parametrize(("seconds", "tokens"), [(1e-9, 96), (1e9, 512)])
def test_a_step_is_not_too_small_and_not_too_large(
    folder: Path, seconds: float, tokens: int
) -> None:
    model = load_model(open_weights(folder), torch_ops(), torch.float32, CPU, 512)
    assert HostPreparation(model).step_tokens(seconds) == tokens


@pytest.mark.parametrize(("longest", "mebibytes"), [(1, 448), (600, 600), (5000, 1024)])
def test_the_cache_of_a_cpu_holds_a_longest_request_if_it_is_not_huge(
    longest: int, mebibytes: int
) -> None:
    assert cpu_cache_bytes(longest << 20) == mebibytes << 20


def test_what_was_freed_is_given_back() -> None:
    before = memory.resident_bytes(CPU)
    small = [bytes(1000) for _ in range(100_000)]  # each too small to be a mapping of its own
    assert memory.resident_bytes(CPU) > before + (80 << 20)
    keep = small[-1]
    del small
    memory.give_back()
    assert memory.resident_bytes(CPU) < before + (40 << 20)
    assert keep


def test_fitting_blocks() -> None:
    assert fit_blocks(0, 1000, 100, 1000) == 10
    assert fit_blocks(3, 1000, 100, 300) == 3
    with pytest.raises(EngineError, match="4 blocks"):
        fit_blocks(4, 1000, 100, 399)


def test_host_blocks_are_as_many_as_asked_for_and_fit() -> None:
    assert fit_host_blocks(1000, 100, 10_000) == 10
    assert fit_host_blocks(1000, 100, 1000) == 5
    assert fit_host_blocks(0, 100, 1000) == fit_host_blocks(1000, 100, -1) == 0


def test_host_blocks_follow_swap_bytes(folder: Path) -> None:
    capacity = load_engine(settings(folder, swap_bytes=7 * BLOCK_BYTES + 5)).capacity
    assert capacity.num_host_blocks == 7


def test_a_container_has_less_than_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = torch.device("cpu")
    assert 1 << 20 < memory.free_bytes(device) < 1 << 50
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory.free_bytes(device) == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_bytes(device) > 1 << 20
