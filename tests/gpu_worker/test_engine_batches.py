"""The engine under the real scheduler: rows that share steps, and whatever happens to them."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from common.messages import Ending, RequestId, Sampling
from gpu_worker.llama import Llama
from scheduler.core.request import Request
from tests.gpu_worker.driving import Driver, make_request
from tests.gpu_worker.tiny import VOCAB, load, make_engine, make_reference


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    path: Path = tmp_path_factory.mktemp("model")
    make_reference("llama").save_pretrained(path)
    return load(path)


def random_requests(count: int, seed: int, longest_prompt: int = 60) -> list[Request]:
    """Requests of all kinds: greedy and drawn, filtered, penalised, biased."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    requests = []
    for index in range(count):
        sampling = Sampling(
            seed=number(0, 2**62),
            temperature=(0.0, 0.8, 1.0)[number(0, 3)],
            top_p=(1.0, 0.9)[number(0, 2)],
            top_k=(0, 20)[number(0, 2)],
            min_p=(0.0, 0.02)[number(0, 2)],
            presence_penalty=(0.0, 0.5)[number(0, 2)],
            repetition_penalty=(1.0, 1.2)[number(0, 2)],
            logit_bias=((), ((7, 2.0),))[number(0, 2)],
        )
        prompt = [number(0, VOCAB) for _ in range(number(1, longest_prompt))]
        ending = Ending(number(5, 40), min_tokens=number(0, 4), end_tokens=(3, 4))
        requests.append(make_request(f"r{seed}.{index}", prompt, ending, sampling))
    return requests


def fresh(request: Request) -> Request:
    prompt = request.tokens[: request.num_prompt]
    return make_request(request.id, prompt, request.ending, request.sampling)


def test_alone_or_among_others_that_come_and_go(model: Llama) -> None:
    requests = random_requests(48, seed=1, longest_prompt=30)
    alone = {}
    for request in requests:
        driver = Driver(make_engine(model), max_step_tokens=512, prefix_cache=False)
        alone |= driver.run([fresh(request)])
    arrivals = {i - 30: requests[i : i + 1] for i in range(32, 48)}
    driver = Driver(make_engine(model, num_blocks=400), max_step_tokens=200, max_running=32)
    assert driver.run(requests[:32], arrivals) == alone
    assert max(len(result.sampled) for result in driver.results) >= 24


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_preemption_changes_nothing(
    model: Llama, depth: int, preemption: str, prefix_cache: bool
) -> None:
    requests = random_requests(16, seed=2, longest_prompt=9)
    tight = Driver(
        make_engine(model, num_host_blocks=20),
        max_step_tokens=48,
        num_blocks=7,
        depth=depth,
        preemption=preemption,
        prefix_cache=prefix_cache,
    )
    assert tight.run([fresh(request) for request in requests]) == undisturbed(model, requests)
    assert sum(request.preemptions for request in tight.ended.values()) >= 5
    num_swapped = sum(len(plan.swap_in) for plan in tight.plans)
    assert (num_swapped >= 5) == (preemption == "swap")


@pytest.mark.parametrize("depth", [1, 3])
def test_shared_prefixes_change_nothing(model: Llama, depth: int) -> None:
    requests = random_requests(24, seed=3, longest_prompt=20)
    for index, request in enumerate(requests):
        common = [(index % 3 * 100 + i) % VOCAB for i in range((17, 24, 40)[index % 3])]
        requests[index] = make_request(
            request.id, common + request.tokens, request.ending, request.sampling
        )
    expected = undisturbed(model, requests)
    driver = Driver(make_engine(model), max_running=6, depth=depth, prefix_cache=True)
    assert driver.run(requests) == expected
    assert sum(request.num_cached > 0 for request in driver.ended.values()) >= 15
    assert any(start.num_computed for plan in driver.plans for start in plan.admitted)


@pytest.mark.parametrize("reservation", ["exact", "power_of_two"])
def test_contiguous_ranges_change_nothing(model: Llama, reservation: str) -> None:
    requests = random_requests(24, seed=4, longest_prompt=40)
    expected = undisturbed(model, requests)
    driver = Driver(
        make_engine(model, num_blocks=40),
        max_step_tokens=64,
        kv="reserved",
        reservation=reservation,
        prefix_cache=False,
    )
    assert driver.run(requests) == expected
    chunks = [chunk for plan in driver.plans for chunk in plan.chunks if chunk.new_blocks]
    assert len(chunks) == len(requests)  # each gets its range at once
    for chunk in chunks:
        first = chunk.new_blocks[0]
        assert chunk.new_blocks == tuple(range(first, first + len(chunk.new_blocks)))


def undisturbed(model: Llama, requests: Sequence[Request]) -> dict[RequestId, list[int]]:
    """Their answers with room for all, and nothing shared."""
    driver = Driver(make_engine(model, num_blocks=400), prefix_cache=False)
    answers = driver.run([fresh(request) for request in requests])
    assert not any(request.preemptions for request in driver.ended.values())
    return answers
