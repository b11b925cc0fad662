"""The engine that computes nothing answers the truth, and checks plans as a cache would not."""

from dataclasses import fields, replace

import pytest

from common.config import WorkerSettings
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from common.messages import (
    BlockId,
    Chunk,
    Ending,
    HostBlockId,
    RequestId,
    RowStart,
    Sampling,
    StepPlan,
)
from gpu_worker.engine import Capacity
from gpu_worker.service import WorkerService
from gpu_worker.simulated import TOKEN_BYTES, SimulatedEngine, truth

PROMPT = tuple(range(10))
ROW = RowStart(RequestId("a.0"), PROMPT, len(PROMPT), Sampling(seed=0), Ending(max_tokens=5), ())
TABLE = tuple(BlockId(block) for block in (3, 1, 2, 5))
SWAPS = tuple((block, HostBlockId(host)) for host, block in enumerate(TABLE[:3]))


@pytest.fixture
def engine() -> SimulatedEngine:
    capacity = Capacity("m", "simulated", 8, 4, 64, 64, 4, num_host_blocks=3)
    return SimulatedEngine(capacity, step_seconds=0.0, token_seconds=0.0)


def begin(engine: SimulatedEngine) -> None:
    chunk = Chunk(ROW.request_id, 0, 10, TABLE[:3], samples=True)
    result = engine.execute(StepPlan(1, admitted=(ROW,), chunks=(chunk,)))
    assert [each.token for each in result.sampled] == [truth(PROMPT, 0)]


def back(num_computed: int) -> RowStart:
    return replace(ROW, tokens=(*PROMPT, truth(PROMPT, 0)), num_computed=num_computed)


def test_a_row_comes_back_behind_what_was_swapped_out(engine: SimulatedEngine) -> None:
    begin(engine)
    engine.execute(StepPlan(2, released=(ROW.request_id,), swap_out=SWAPS))
    chunk = Chunk(ROW.request_id, 10, 1, TABLE, samples=True)
    plan = StepPlan(3, admitted=(back(10),), chunks=(chunk,), swap_in=SWAPS)
    [sampled] = engine.execute(plan).sampled
    assert (sampled.position, sampled.token) == (1, truth(PROMPT, 1))


@pytest.mark.parametrize(
    ("num_computed", "first", "text"),
    [(11, 11, "11 tokens computed"), (8, 10, "after 8"), (8, 0, "after 8"), (-1, -1, "computed")],
)
def test_a_row_starts_where_it_says(
    engine: SimulatedEngine, num_computed: int, first: int, text: str
) -> None:
    chunk = Chunk(ROW.request_id, first, 11 - first, TABLE, samples=True)
    with pytest.raises(AssertionError, match=text):
        engine.execute(StepPlan(1, admitted=(back(num_computed),), chunks=(chunk,)))


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (StepPlan(2, swap_in=SWAPS[:1]), "nothing was swapped out to 0"),
        (StepPlan(2, swap_out=((BlockId(8), HostBlockId(0)),)), "no block 8"),
        (StepPlan(2, swap_out=((BlockId(0), HostBlockId(3)),)), "no host block 3"),
        (StepPlan(2, swap_in=((BlockId(0), HostBlockId(-1)),)), "no host block -1"),
    ],
)
def test_swaps_that_cannot_be(engine: SimulatedEngine, plan: StepPlan, text: str) -> None:
    begin(engine)
    with pytest.raises(AssertionError, match=text):
        engine.execute(plan)


def test_a_reset_forgets_what_was_swapped_out(engine: SimulatedEngine) -> None:
    begin(engine)
    engine.execute(StepPlan(2, swap_out=SWAPS))
    engine.execute(StepPlan(3, swap_in=SWAPS))
    engine.reset()
    with pytest.raises(AssertionError, match="nothing was swapped out"):
        engine.execute(StepPlan(1, swap_in=SWAPS))


def test_host_blocks_are_those_of_the_embedded_model() -> None:
    settings = WorkerSettings(swap_bytes=5 * 16 * TOKEN_BYTES + 1, block_size=16)
    assert SimulatedEngine.from_settings(settings, "m").capacity.num_host_blocks == 5


def test_the_hello_says_all_that_the_engine_can_hold(engine: SimulatedEngine) -> None:
    hello = WorkerService(MemoryBus(MemoryServer()), engine, "host", beat_seconds=1.0)._hello()
    for field in fields(Capacity):
        assert getattr(hello, field.name) == getattr(engine.capacity, field.name)
