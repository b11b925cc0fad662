"""Random requests that come, are preempted, cancelled and end, for a while: nothing leaks.

In the deterministic mode, so that the answers of some can be held to what they are alone.
"""

import random
import time
from collections import Counter
from dataclasses import dataclass, field

import torch

from common.messages import FinishReason
from gpu_worker.model_engine import ModelEngine
from scheduler.core.invariants import check
from scheduler.core.request import Request
from tests.gpu.machine import Machine
from tests.gpu.models import SMALL, TINY, Room, assemble, device_engine, drawn
from tests.gpu.report import Report
from tests.gpu.serving import Serving
from tests.gpu.workload import fresh, make_requests
from tests.gpu_worker.driving import Driver

LEAST_STEPS = 250  # however long they take
CHECKED_STEPS = 16  # from one look at the invariants to the next
GROWTH_BYTES = 16 << 20  # that the device may hold more at the end than in the middle
COMPARED = 12  # requests that run again, alone
DONE = (FinishReason.STOP, FinishReason.LENGTH)


def soak(machine: Machine, report: Report) -> None:
    dtype = machine.pick(torch.bfloat16, torch.float32)
    take = drawn(dtype, machine.device)
    config = machine.pick(SMALL, TINY).config()
    model = assemble(config, machine.ops(deterministic=True), take, 1024)
    room = Room(machine.pick(40, 8), machine.pick(32, 6), machine.pick(128, 32), 40)
    engine = device_engine(machine, model, room, machine.pick(64, 4))
    traffic = Traffic(machine, config.vocab_size, machine.pick(20.0, 0.0))
    serving = Serving(engine, traffic.on_step, preemption="swap")
    serving.run(traffic.more(8), seconds=traffic.seconds + 60.0)
    _judge(report, serving, traffic)
    _compare(machine, report, engine, serving)


@dataclass
class Traffic:
    """Keeps the line filled, takes some out, and looks at invariants and memory."""

    machine: Machine
    vocab: int
    seconds: float
    held: list[int] = field(default_factory=list)  # bytes, one look after the other
    _numbers: random.Random = field(default_factory=lambda: random.Random(5))
    _count: int = 0

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.seconds

    def more(self, count: int) -> list[Request]:
        self._count += 1
        longest = {"longest_prompt": self.machine.pick(100, 12), "longest_answer": 60}
        kinds = {"seed": self._count, "greedy": self._count % 3 == 0}
        return make_requests(count, self.vocab, **longest, **kinds)  # type: ignore[arg-type]

    def on_step(self, serving: Serving) -> None:
        scheduler = serving.scheduler
        if serving.num_steps % CHECKED_STEPS == 0:
            check(scheduler)
            self.held.append(self.machine.held_bytes())
        if time.monotonic() > self._until and serving.num_steps >= LEAST_STEPS:
            return
        if len(scheduler.requests) < self.machine.pick(48, 8):
            for request in self.more(self._numbers.randint(1, 6)):
                scheduler.add(request)
        if self._numbers.random() < 0.05 and scheduler.requests:
            name = self._numbers.choice(list(scheduler.requests))
            scheduler.end(name, FinishReason.CANCELLED)


def _judge(report: Report, serving: Serving, traffic: Traffic) -> None:
    preempted = sum(request.preemptions for request in serving.ended.values())
    reasons = Counter(str(request.finish_reason) for request in serving.ended.values())
    report.row(steps=serving.num_steps, preempted=preempted, **reasons)
    pool, host = serving.scheduler.pool, serving.scheduler.host
    report.holds("all blocks are free", pool.num_free == pool.num_blocks)
    report.holds("all host blocks are free", host.num_free == host.num_blocks)
    report.holds("some were preempted", preempted > 0)
    report.holds("none failed", reasons[FinishReason.ERROR] == 0)
    report.holds("some were cancelled", reasons[FinishReason.CANCELLED] > 0)
    quarter = max(1, len(traffic.held) // 4)
    grown = min(traffic.held[-quarter:]) - min(traffic.held[quarter : 3 * quarter] or [0])
    report.holds("memory does not grow", grown <= GROWTH_BYTES, mib=grown / (1 << 20))


def _compare(machine: Machine, report: Report, engine: ModelEngine, serving: Serving) -> None:
    """Some requests again, one at a time: the same tokens."""
    done = [r for r in serving.ended.values() if r.finish_reason in DONE]
    chosen = random.Random(6).sample(done, min(machine.pick(COMPARED, 3), len(done)))
    same = 0
    for request in chosen:
        engine.reset()
        [alone] = Driver(engine).run([fresh(request)]).values()
        same += alone == request.tokens[request.num_prompt :]
    report.holds("the same tokens alone", same == len(chosen) > 0, same=same, of=len(chosen))
