"""How much of the time the device waits between the steps of a system that runs.

Plans come from the scheduler's core, through the engine's thread; each result goes back to it
before the next plan is made. Between two pieces of work on the stream nothing runs.
"""

from common.messages import FinishReason
from gpu_worker.model_engine import ModelEngine
from scheduler.core.request import Request
from tests.gpu import eight_b
from tests.gpu.machine import Machine
from tests.gpu.report import Report
from tests.gpu.serving import Serving
from tests.gpu.spans import TimedStream, idle_share
from tests.gpu.workload import make_requests

TARGET = 0.02
FIRST_STEP = 12  # noted: when rows run


def idle(machine: Machine, report: Report) -> None:
    model, room = eight_b.make_model(machine), eight_b.make_room(machine)
    stream = machine.timed_stream()
    engine = eight_b.prepare(machine, report, model, room, stream)
    for batch in machine.pick((1, 16, 64, 256), (1, 3)):
        with report.case(f"decoding, {batch} rows"):
            _measure(machine, report, engine, stream, batch, arriving=False)
    for batch in machine.pick((64,), (3,)):
        with report.case(f"arriving, {batch} rows"):
            _measure(machine, report, engine, stream, batch, arriving=True)


def _measure(
    machine: Machine,
    report: Report,
    engine: ModelEngine,
    stream: TimedStream,
    batch: int,
    *,
    arriving: bool,
) -> None:
    load = Load(machine, stream, batch, arriving=arriving)
    engine.reset()
    serving = Serving(engine, load.on_step, prefix_cache=False)
    serving.run(load.more(batch), seconds=60.0)
    spans = load.spans
    assert spans, "the load ended before it was measured"
    share = idle_share(spans)
    what = f"{'arriving' if arriving else 'decoding'}, {batch} rows"
    whole = spans[-1][1] - spans[0][0]
    report.row(load=what, steps=load.num_noted, ms_a_step=whole / load.num_noted * 1e3, idle=share)
    name = f"idle between steps: {what}"
    report.target(name, share, f"< {TARGET}", is_met=share < TARGET)


class Load:
    """Requests, and which of their steps are noted."""

    def __init__(
        self, machine: Machine, stream: TimedStream, batch: int, *, arriving: bool
    ) -> None:
        self.num_noted = machine.pick(60, 6)  # steps
        self.spans: list[tuple[float, float]] = []
        self._machine, self._stream = machine, stream
        self._batch, self._arriving = batch, arriving
        self._count = 0

    def more(self, count: int) -> list[Request]:
        """Requests that all run longer than is noted, or such that come and go."""
        self._count += 1
        last = FIRST_STEP + 2 * self.num_noted
        longest = self._machine.pick(600, 20) if self._arriving else self._machine.pick(32, 8)
        answer = self._machine.pick(40, 6) if self._arriving else 2 * last
        return make_requests(
            count,
            300,
            longest_prompt=longest,
            longest_answer=answer,
            seed=self._count,
            greedy=False,
        )

    def on_step(self, serving: Serving) -> None:
        step, scheduler = serving.num_steps, serving.scheduler
        if step == FIRST_STEP:
            self._stream.note()
        elif step == FIRST_STEP + self.num_noted:
            self.spans = self._stream.spans()
            for name in list(scheduler.requests):
                scheduler.end(name, FinishReason.CANCELLED)
        if self._arriving and step < FIRST_STEP + self.num_noted:
            for request in self.more(self._batch - len(scheduler.requests)):
                scheduler.add(request)
