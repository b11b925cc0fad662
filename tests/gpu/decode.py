"""Whole steps of an 8B-shaped model through the real engine: decoding, and a prompt.

Each step is launched before the one before it is read, as the engine's thread does.
"""

import time
from collections import deque

from common.messages import BlockId, Chunk, Ending, RequestId, RowStart, Sampling, StepPlan
from gpu_worker.engine import Launched
from gpu_worker.model_engine import ModelEngine
from tests.gpu import eight_b
from tests.gpu.machine import Machine
from tests.gpu.models import BLOCK_SIZE
from tests.gpu.rates import Rates, known_rates
from tests.gpu.report import Report

WARM_STEPS = 4
STEP_TARGET = 1.2  # of the floor, at batch 1 to 64
TARGET_BATCHES = (1, 16, 64)


def decode(machine: Machine, report: Report) -> None:
    rates = known_rates(machine, report)
    model, room = eight_b.make_model(machine), eight_b.make_room(machine)
    engine = eight_b.prepare(machine, report, model, room, machine.stream())
    eager = eight_b.without_graphs(machine, engine)
    count = machine.pick(40, 3)
    for batch in machine.pick((1, 16, 64, 256), (1, 4)):
        # Tables of up to 1,024 tokens are not split; one token more takes tables of 8,192.
        for kind, each, context in (
            ("graph", engine, machine.pick(1024, 64)),
            ("eager", eager, machine.pick(1024, 64)),
            ("graph, wide tables", engine, machine.pick(1100, 70)),
        ):
            if not report.has_time(2.0):
                report.note(f"no time for batch {batch}, {kind}, and what comes behind it")
                return
            with report.case(f"batch {batch}, {kind}"):
                _decode(report, rates, each, kind, batch, context, count)
    with report.case("prompt"):
        _prompt(machine, report, rates, eager)


def _decode(
    report: Report,
    rates: Rates,
    engine: ModelEngine,
    kind: str,
    batch: int,
    context: int,
    count: int,
) -> None:
    """Steps that end at `context` cached tokens."""
    config = engine._processor.model.config
    seconds = _steps(engine, batch, context - count - WARM_STEPS, count)
    middle = context - count // 2
    num_bytes = eight_b.decode_bytes(config, batch, middle)
    floor = rates.floor_seconds(num_bytes, eight_b.decode_flops(config, batch, middle))
    report.row(
        step=kind,
        batch=batch,
        context=context,
        floor_ms=floor * 1e3,
        predicted_ms=eight_b.predicted_decode_us(batch, context) / 1e3,
        ms=seconds * 1e3,
        times_floor=seconds / floor,
        tokens_a_second=batch / seconds,
    )
    if kind == "graph" and batch in TARGET_BATCHES:
        name, times = f"decode step of 8B, batch {batch}, over its floor", seconds / floor
        report.target(name, times, f"<= {STEP_TARGET}", is_met=times <= STEP_TARGET)


def _steps(engine: ModelEngine, batch: int, context: int, count: int) -> float:
    """Seconds of one step, of `count` that follow one another."""
    engine.reset()
    plans = deque(_plans(batch, context, WARM_STEPS + count))
    launched: deque[Launched] = deque()
    began = 0.0
    while plans or launched:
        if plans:
            launched.append(engine.launch(plans.popleft()))
        if len(launched) == 2 or not plans:
            launched.popleft().finish()
        if len(plans) == count - 1 and not began:
            began = time.perf_counter()  # of the steps that are measured one is launched
    ended = time.perf_counter()
    engine.reset()
    return (ended - began) / count


def _plans(batch: int, context: int, count: int) -> list[StepPlan]:
    """Rows that begin with `context` tokens, all but the last computed: what is in their blocks."""
    blocks = -(-(context + count) // BLOCK_SIZE)
    names = [RequestId(f"{row}.0") for row in range(batch)]
    starts, chunks = [], []
    for row, name in enumerate(names):
        tokens = tuple((row * 7 + i) % 300 for i in range(context))
        ending = Ending(max_tokens=count + 1)
        starts.append(RowStart(name, tokens, context, Sampling(row), ending, (), context - 1))
        table = tuple(BlockId(row * blocks + i) for i in range(blocks))
        chunks.append(Chunk(name, context - 1, 1, table, samples=True))
    plans = [StepPlan(1, admitted=tuple(starts), chunks=tuple(chunks))]
    for step in range(1, count):
        at = context - 1 + step
        decoding = tuple(Chunk(name, at, 1, (), samples=True) for name in names)
        plans.append(StepPlan(step + 1, chunks=decoding))
    return plans


def _prompt(machine: Machine, report: Report, rates: Rates, engine: ModelEngine) -> None:
    """A prompt as long as a step; the median of several."""
    rows = engine.capacity.max_step_tokens
    config = engine._processor.model.config
    name, blocks = RequestId("prompt.0"), tuple(map(BlockId, range(-(-rows // BLOCK_SIZE) + 1)))
    tokens = tuple(i % 300 for i in range(rows))
    start = RowStart(name, tokens, rows, Sampling(0), Ending(1), ())
    chunk = Chunk(name, 0, rows, blocks, samples=True)
    times = []
    for step in range(1, machine.pick(7, 2)):
        plan = StepPlan(step, released=(name,), admitted=(start,), chunks=(chunk,))
        began = time.perf_counter()
        engine.execute(plan)
        times.append(time.perf_counter() - began)
    seconds = sorted(times)[len(times) // 2]
    floor = eight_b.prompt_flops(config, rows) / rates.flops_a_second
    report.row(
        step="prompt", rows=rows, floor_ms=floor * 1e3, ms=seconds * 1e3, share=floor / seconds
    )
