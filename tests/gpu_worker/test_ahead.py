"""Steps launched before the one before is read, on a device that is late: the same answers.

All late, with graphs and without; or all at once, where what comes too late shows.
"""

from pathlib import Path
from typing import Any

import pytest

from common.messages import RequestId
from gpu_worker.llama import Llama
from scheduler.core.request import Request
from tests.gpu_worker.ahead import OnDevice
from tests.gpu_worker.driving import AheadDriver, Driver
from tests.gpu_worker.test_engine_batches import fresh, random_requests
from tests.gpu_worker.tiny import load, make_engine, make_reference

DEVICES = [
    pytest.param(OnDevice(), id="late"),
    pytest.param(OnDevice(graph_tokens=64), id="late-graphs"),
    pytest.param(OnDevice(late=False, graph_tokens=24), id="at-once"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    path: Path = tmp_path_factory.mktemp("model")
    make_reference("llama").save_pretrained(path)
    return load(path)


def outcomes(driver: Driver) -> dict[RequestId, tuple[list[int], Any]]:
    return {
        name: (request.tokens[request.num_prompt :], request.finish_reason)
        for name, request in driver.ended.items()
    }


def run(driver: Driver, requests: list[Request]) -> dict[RequestId, tuple[list[int], Any]]:
    driver.run([fresh(request) for request in requests])
    return outcomes(driver)


@pytest.mark.parametrize("device", DEVICES)
def test_requests_of_all_kinds(model: Llama, device: OnDevice) -> None:
    requests = random_requests(24, seed=5, longest_prompt=40)
    expected = run(Driver(make_engine(model)), requests)
    driver = AheadDriver(make_engine(model, make_processor=device), max_step_tokens=48)
    assert run(driver, requests) == expected
    assert driver.num_ahead > len(driver.plans) // 2
    assert bool(device.stream.num_replays) == bool(device.graph_tokens)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("device", DEVICES)
def test_preemption_while_steps_are_unread(model: Llama, device: OnDevice, preemption: str) -> None:
    requests = random_requests(12, seed=6, longest_prompt=9)
    expected = run(Driver(make_engine(model)), requests)
    engine = make_engine(model, num_host_blocks=20, make_processor=device)
    driver = AheadDriver(engine, max_step_tokens=48, num_blocks=7, preemption=preemption)
    assert run(driver, requests) == expected
    assert sum(request.preemptions for request in driver.ended.values()) >= 5
    assert driver.num_ahead > 10
