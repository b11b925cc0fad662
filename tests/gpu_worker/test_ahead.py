"""Steps launched before the one before is read, on a device that is late: the same answers.

All late, with graphs and without; or all at once, where what comes too late shows.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from common.messages import BlockId, Chunk, Ending, FinishReason, RequestId, StepPlan, StepResult
from gpu_worker.engine import Engine, EngineError, Launched
from gpu_worker.engine_thread import EngineThread, Outcome
from gpu_worker.llama import Llama
from gpu_worker.sampling_ops import torch_sampling_ops
from gpu_worker.triton_ops import triton_ops
from gpu_worker.triton_sampling_ops import triton_sampling_ops
from gpu_worker.weights import load_model, open_weights
from scheduler.core.request import Request
from tests.gpu_worker.ahead import OnDevice
from tests.gpu_worker.driving import AheadDriver, Driver, make_request
from tests.gpu_worker.test_engine import (
    NAN_TOKEN,
    PROMPT,
    R0,
    R1,
    blocks_of,
    decode,
    first_plan,
    start_of,
)
from tests.gpu_worker.test_engine_batches import fresh, random_requests
from tests.gpu_worker.tiny import CPU, load, make_engine, make_reference

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


# --- Step by step -----------------------------------------------------------------------------


def replay(engine: Engine, plans: Sequence[StepPlan]) -> list[StepResult]:
    """Each launched before the one before is read."""
    launched: deque[Launched] = deque()
    results = []
    for plan in plans:
        launched.append(engine.launch(plan))
        if len(launched) == 2:
            results.append(launched.popleft().finish())
    return [*results, *(step.finish() for step in launched)]


def one_by_one(engine: Engine, plans: Sequence[StepPlan]) -> list[StepResult]:
    return [engine.execute(plan) for plan in plans]


def said(results: Sequence[StepResult]) -> list[tuple[Any, ...]]:
    """All but how long it took."""
    return [(result.step, result.sampled, result.errors) for result in results if result.step]


def ending_soon(seed: int) -> list[Request]:
    """Of these most end at a token, at one time or another; some at NaN."""
    requests = random_requests(30, seed, longest_prompt=12)
    for index, request in enumerate(requests):
        ending = Ending(30, min_tokens=index % 3, end_tokens=tuple(range(index % 7, 320, 40)))
        if index % 10 == 9:
            request.tokens[-1] = NAN_TOKEN
        requests[index] = make_request(request.id, request.tokens, ending, request.sampling)
    return requests


@pytest.fixture(scope="module")
def nan_model(model: Llama) -> Llama:
    """Gives NaN for every text with NAN_TOKEN."""
    embedding = model.embedding.clone()
    embedding[NAN_TOKEN] = torch.nan
    return replace(model, embedding=embedding)


@pytest.fixture(scope="module", params=["recompute", "swap"])
def recorded(request: pytest.FixtureRequest, nan_model: Llama) -> Driver:
    """Steps one after the other, planned one step ahead of results."""
    engine = make_engine(nan_model, num_blocks=9, num_host_blocks=20)
    driver = Driver(engine, max_step_tokens=20, max_running=8, preemption=request.param)
    driver.run(ending_soon(seed=7))
    return driver


def test_rows_end_after_their_next_chunk_is_planned(recorded: Driver) -> None:
    """Or the test below would show little."""
    reasons = [request.finish_reason for request in recorded.ended.values()]
    assert reasons.count(FinishReason.STOP) > 10
    assert reasons.count(FinishReason.LENGTH) > 0
    assert 3 <= reasons.count(FinishReason.ERROR) < 10
    assert sum(request.preemptions for request in recorded.ended.values()) > 3
    ended = {s.request_id: r.step for r in recorded.results for s in r.sampled if s.finish}
    planned = [(c.request_id, plan.step) for plan in recorded.plans for c in plan.chunks]
    assert sum(ended.get(name, step) < step for name, step in planned) > 5


@pytest.mark.parametrize("device", DEVICES)
def test_each_step_says_the_same(nan_model: Llama, recorded: Driver, device: OnDevice) -> None:
    engine = make_engine(nan_model, num_blocks=9, num_host_blocks=20, make_processor=device)
    assert said(replay(engine, recorded.plans)) == said(recorded.results)


# --- By hand ----------------------------------------------------------------------------------


def test_a_row_that_is_released_while_its_step_is_unread_still_has_its_token(model: Llama) -> None:
    """And the next one, whose prompt comes in two parts, has its place and nothing of it."""
    other = replace(start_of(R1, range(40, 50)), num_prompt=10)
    plans = [
        first_plan(start_of()),
        decode(2, len(PROMPT), R0),
        StepPlan(3, (R0,), (other,), (Chunk(R1, 0, 5, blocks_of(0), samples=False),)),
        StepPlan(4, chunks=(Chunk(R1, 5, 5, (), samples=True),)),
        decode(5, 10, R1),
        replace(first_plan(start_of(R0, (*PROMPT, 1, 2)), step=6), released=(R1,)),
        decode(7, len(PROMPT) + 2, R0),
    ]
    expected = said(one_by_one(make_engine(model, max_rows=1), plans))
    assert [len(sampled) for _, sampled, _ in expected] == [1, 1, 0, 1, 1, 1, 1]
    engine = make_engine(model, max_rows=1, make_processor=OnDevice())
    assert said(replay(engine, plans)) == expected


def test_nothing_comes_behind_the_last_token_that_a_row_may_have(model: Llama) -> None:
    """That is known when it is promised; there is no place for another one."""
    start = start_of(ending=Ending(max_tokens=100))
    first = StepPlan(1, admitted=(start,), chunks=(Chunk(R0, 0, 5, (BlockId(0),), samples=True),))
    plans = [first, *(decode(position - 3, position, R0) for position in (5, 6, 7))]
    expected = said(one_by_one(make_engine(model, num_blocks=1), plans))
    assert [len(sampled) for _, sampled, _ in expected] == [1, 1, 1, 0]
    assert expected[2][1][0].finish is FinishReason.LENGTH
    engine = make_engine(model, num_blocks=1, make_processor=OnDevice())
    assert said(replay(engine, plans)) == expected


def test_what_the_device_cannot_do_shows_when_the_step_is_finished(model: Llama) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("illegal address")

    ops = replace(torch_sampling_ops(), keep_tokens=broken)
    engine = make_engine(model, make_processor=OnDevice(sampling_ops=ops))
    steps = [engine.launch(first_plan(start_of())), engine.launch(decode(2, len(PROMPT), R0))]
    for step in steps:
        with pytest.raises(RuntimeError, match="illegal address"):
            step.wait()
        with pytest.raises(RuntimeError, match="illegal address"):
            step.finish()
    with pytest.raises(RuntimeError, match="illegal address"):
        engine.reset()  # such a device computes nothing any more: the process is to end


def test_a_plan_that_contradicts_the_rows_leaves_the_step_before(model: Llama) -> None:
    engine = make_engine(model, make_processor=OnDevice())
    step = engine.launch(first_plan(start_of()))
    with pytest.raises(EngineError, match="rows have not"):
        engine.launch(decode(2, len(PROMPT) + 1, R0))
    assert said([step.finish()]) == said([make_engine(model).execute(first_plan(start_of()))])


def test_a_reset_waits_for_what_is_launched(model: Llama) -> None:
    engine = make_engine(model, make_processor=OnDevice())
    engine.launch(first_plan(start_of()))
    engine.launch(decode(2, len(PROMPT), R0))
    engine.reset()
    plans = [first_plan(start_of()), decode(2, len(PROMPT), R0), decode(3, len(PROMPT) + 1, R0)]
    expected = said(one_by_one(make_engine(model), plans))
    assert said(replay(engine, plans)) == expected


def test_three_steps_on_their_way_are_too_many(model: Llama) -> None:
    engine = make_engine(model, make_processor=OnDevice())
    step = engine.launch(first_plan(start_of()))
    engine.launch(decode(2, len(PROMPT), R0))
    engine.launch(decode(3, len(PROMPT) + 1, R0))
    with pytest.raises(AssertionError, match="same memory"):
        step.finish()


async def test_on_threads(model: Llama, recorded: Driver) -> None:
    """The engine's, and that which waits: what is launched runs on it here, beside the engine."""
    engine = make_engine(model, num_blocks=9, num_host_blocks=20, make_processor=OnDevice())
    outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
    thread = EngineThread(engine, lambda _plan, outcome: outcomes.put_nowait(outcome))
    plans, results = recorded.plans[:40], []
    async with asyncio.timeout(60):
        for count, plan in enumerate(plans):
            thread.put(plan)
            if count > 3:
                results.append(await outcomes.get())
        results += [await outcomes.get() for _ in range(4)]
    await thread.stop()
    alone = make_engine(model, num_blocks=9, num_host_blocks=20)
    assert said(results) == said(one_by_one(alone, plans))


# --- With Triton's kernels --------------------------------------------------------------------


@pytest.mark.usefixtures("poisoned")  # what belongs to padding is NaN, and stays its own
def test_triton_kernels_give_the_tokens_of_the_references(tmp_path: Path) -> None:
    make_reference("qwen3").save_pretrained(tmp_path)
    requests = random_requests(3, seed=8, longest_prompt=10)
    for index, request in enumerate(requests):
        sampling = replace(request.sampling, temperature=(0.0, 0.8)[index % 2])
        requests[index] = make_request(request.id, request.tokens, Ending(4, 1, (3, 4)), sampling)
    expected = run(Driver(make_engine(load(tmp_path)), max_step_tokens=12), requests)
    kernels = load_model(open_weights(tmp_path), triton_ops(), torch.float32, CPU, 512)
    device = OnDevice(graph_tokens=3, sampling_ops=triton_sampling_ops())
    engine = make_engine(kernels, num_blocks=40, max_rows=3, make_processor=device)
    driver = AheadDriver(engine, max_step_tokens=12)
    assert run(driver, requests) == expected
    assert driver.num_ahead >= 3
    assert device.stream.num_replays >= 3
