"""Whatever scheme the scheduler follows, the engine's answers are the same."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from common.messages import Ending, RequestId
from gpu_worker.llama import Llama
from scheduler.core.request import Request
from scheduler.core.strategies import BATCHING, POLICY, PREFILL, Choices
from tests.gpu_worker.driving import Driver, make_request
from tests.gpu_worker.tiny import VOCAB, load, make_engine, make_reference

MEMORY: list[dict[str, Any]] = [
    {"kv": "paged", "preemption": preemption, "prefix_cache": prefix_cache}
    for preemption, prefix_cache in product(("recompute", "swap", "never"), (False, True))
] + [
    {"kv": "reserved", "reservation": "exact", "prefix_cache": False},
    {"kv": "reserved", "reservation": "power_of_two", "preemption": "never", "prefix_cache": False},
]
SCHEMES = [
    {"batching": batching, "prefill": prefill, **memory, "policy": policy}
    for batching, prefill, memory, policy in product(BATCHING, PREFILL, MEMORY, POLICY)
]


def name(scheme: dict[str, Any]) -> str:
    return "-".join(str(value) for value in scheme.values())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    path: Path = tmp_path_factory.mktemp("model")
    make_reference("llama").save_pretrained(path)
    return load(path)


def greedy_requests() -> list[Request]:
    """Of three tenants, urgent and not, of which some begin alike."""
    requests = []
    for index in range(12):
        prompt = [(index % 4 * 50 + i) % VOCAB for i in range(18 + 11 * index % 34)]
        request = make_request(f"r.{index}", prompt, Ending(6 + 7 * index % 26))
        request.tenant, request.priority, request.arrival = (
            "abc"[index % 4 % 3],
            index % 2,
            index / 10,
        )
        requests.append(request)
    return requests


@pytest.fixture(scope="module")
def expected(model: Llama) -> dict[RequestId, list[int]]:
    """One after the other, with room for all."""
    answers: dict[RequestId, list[int]] = {}
    for request in greedy_requests():
        answers |= Driver(make_engine(model), prefix_cache=False).run([request])
    return answers


def run(model: Llama, scheme: dict[str, Any]) -> tuple[Driver, dict[RequestId, list[int]]]:
    """In a cache that holds three or four of them, while the others arrive."""
    whole = scheme["prefill"] != "chunked"
    driver = Driver(
        make_engine(model, num_host_blocks=8),
        max_step_tokens=96 if whole else 24,
        num_blocks=12,
        max_running=5,
        **scheme,
    )
    requests = greedy_requests()
    arrivals = {i - 4: requests[i : i + 1] for i in range(6, 12)}
    return driver, driver.run(requests[:6], arrivals)


# Every value of every setting is among these; all of them run by name.
@pytest.mark.parametrize("scheme", SCHEMES[::17], ids=name)
def test_some_schemes_change_nothing(
    model: Llama, expected: dict[RequestId, list[int]], scheme: dict[str, Any]
) -> None:
    _, answers = run(model, scheme)
    assert answers == expected


def test_each_value_is_among_them() -> None:
    for setting, values in (("batching", BATCHING), ("prefill", PREFILL), ("policy", POLICY)):
        assert {scheme[setting] for scheme in SCHEMES[::17]} == set(values)
    assert all(any(memory.items() <= s.items() for s in SCHEMES[::17]) for memory in MEMORY)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_scheme_changes_anything(model: Llama, expected: dict[RequestId, list[int]]) -> None:
    preempted = swapped = shared = 0
    for scheme in SCHEMES:
        Choices(**scheme)
        driver, answers = run(model, scheme)
        assert answers == expected, scheme
        preempted += sum(request.preemptions for request in driver.ended.values())
        swapped += sum(len(plan.swap_in) for plan in driver.plans)
        shared += sum(request.num_cached for request in driver.ended.values())
    assert min(preempted, swapped, shared) > 100
