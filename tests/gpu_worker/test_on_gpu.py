"""The worker's own path on a real GPU: `TRITON_INTERPRET=0 pytest tests/gpu_worker/test_on_gpu.py`.

Whether it is right, the other tests say, on a stream that is late; here is the same on CUDA's.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from common.config import WorkerSettings
from common.messages import RequestId
from gpu_worker.device_processor import DeviceProcessor
from gpu_worker.loading import load_engine
from gpu_worker.model_engine import ModelEngine
from tests.gpu_worker.driving import AheadDriver, Driver
from tests.gpu_worker.test_engine_batches import fresh, random_requests
from tests.gpu_worker.tiny import make_reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not torch.cuda.is_available() or os.environ["TRITON_INTERPRET"] != "0",
        reason="needs a GPU, and kernels that are compiled",
    ),
]
CROWDED: dict[str, Any] = {"max_step_tokens": 48, "num_blocks": 12}


def engine_of(tmp_path: Path, **settings: Any) -> ModelEngine:
    path = tmp_path / "model"
    if not path.exists():
        make_reference("qwen3").save_pretrained(path)
    given = WorkerSettings(
        model=str(path),
        data_dir=str(tmp_path),
        backend="triton",
        dtype="float32",
        num_blocks=400,
        max_rows=16,
        max_step_tokens=64,
        swap_bytes=1 << 20,
        **settings,
    )
    return load_engine(given)


def answers(driver: Driver) -> dict[RequestId, list[int]]:
    requests = random_requests(24, seed=9, longest_prompt=40)
    return driver.run([fresh(request) for request in requests])


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_ahead_and_in_graphs_as_one_by_one(tmp_path: Path, preemption: str) -> None:
    plain = engine_of(tmp_path, cuda_graphs="off")
    expected = answers(Driver(plain, **CROWDED))
    engine = engine_of(tmp_path, cuda_graphs="on")
    processor = engine._processor
    assert isinstance(processor, DeviceProcessor)
    assert len(processor.graphs) > 5
    driver = AheadDriver(engine, preemption=preemption, **CROWDED)
    assert answers(driver) == expected
    assert driver.num_ahead > 20
    assert sum(request.preemptions for request in driver.ended.values()) > 0
