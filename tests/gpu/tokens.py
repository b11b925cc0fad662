"""The tokens of a model, however the device computes them, against those of the CPU's references.

In float32 they are the same but where two logits are nearly equal: so each token of a greedy answer
is held to the CPU's logits after the tokens before it, and must be the largest but for rounding. In
bfloat16 only this is compared. Answers of `deterministic` operations must be the same, bit by bit.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from common.messages import RequestId
from common.model_files import ModelFilesError, locate
from gpu_worker.llama import Inputs, Llama
from gpu_worker.model_engine import ModelEngine
from gpu_worker.ops import torch_ops
from scheduler.core.request import Request
from tests.gpu.machine import Machine
from tests.gpu.models import (
    BLOCK_SIZE,
    CPU,
    SMALL,
    TINY,
    Room,
    assemble,
    copied,
    device_engine,
    drawn,
    host_engine,
    make_cache,
)
from tests.gpu.report import Report
from tests.gpu.serving import Serving
from tests.gpu.workload import fresh, make_requests
from tests.gpu_worker.driving import AheadDriver, Driver

FP32, BF16 = torch.float32, torch.bfloat16
Answers = dict[RequestId, list[int]]
# Of the standard deviation of logits: how far below the largest a greedy token may lie.
GAPS = {FP32: 1e-3, BF16: 0.3}


@dataclass
class Models:
    """One model, on the CPU in float32 and on the device."""

    reference: Llama
    device: Callable[[torch.dtype, bool], Llama]  # of a type, deterministic or not


def tokens(machine: Machine, report: Report) -> None:
    _compare(machine, report, "random", random_models(machine))
    with report.case("a real model"):
        if models := real_models(machine, report):
            _compare(machine, report, machine.model, models)


def random_models(machine: Machine) -> Models:
    """Weights are numbers of 16 bits, whatever they are computed in."""
    config, positions = machine.pick(SMALL, TINY).config(), 1024
    take = cache(drawn(BF16, CPU))

    def on_device(dtype: torch.dtype, deterministic: bool) -> Llama:
        ops = machine.ops(deterministic=deterministic)
        return assemble(config, ops, copied(take, machine.device, dtype), positions)

    return Models(assemble(config, torch_ops(), copied(take, CPU, FP32), positions), on_device)


def real_models(machine: Machine, report: Report) -> Models | None:
    """The model that was named, if it is there and what reads it is installed."""
    try:
        files = locate(machine.model, Path("data"))
    except ModelFilesError as error:
        report.note(f"skipped: no real model ({error})")
        return None
    missing = [name for name in ("gguf", "safetensors") if importlib.util.find_spec(name) is None]
    if missing:
        report.note(f"skipped: no real model ({missing[0]} is not installed)")
        return None
    from gpu_worker.weights import load_model, open_weights  # needs both

    def load(ops: object, dtype: torch.dtype, device: torch.device) -> Llama:
        return load_model(open_weights(files.path), ops, dtype, device, 1024)  # type: ignore[arg-type]

    return Models(
        load(torch_ops(), FP32, CPU),
        lambda dtype, deterministic: load(
            machine.ops(deterministic=deterministic), dtype, machine.device
        ),
    )


def _compare(machine: Machine, report: Report, name: str, models: Models) -> None:
    check = Check(machine, report, name, models)
    with report.case(f"{name}, fp32"):
        check.in_float32()
    with report.case(f"{name}, bf16"):
        check.in_bfloat16()
    with report.case(f"{name}, deterministic"):
        check.deterministic()


class Check:
    """One model's answers to the same requests, under all ways to compute them."""

    def __init__(self, machine: Machine, report: Report, name: str, models: Models) -> None:
        self.machine, self.report, self.name, self.models = machine, report, name, models
        count, prompt, answer = machine.pick((8, 40, 60), (4, 9, 40))
        given = {"longest_prompt": prompt, "longest_answer": answer}
        vocab = models.reference.config.vocab_size
        self.greedy = make_requests(count, vocab, **given, seed=1, greedy=True)
        self.drawn = make_requests(count, vocab, **given, seed=2, greedy=False)
        self.room = Room(400, 2 * count, machine.pick(48, 16), num_host_blocks=64)
        self.graph_tokens = machine.pick(64, 4)
        self.tight = machine.pick(8, 4)  # blocks that are too few for all

    def in_float32(self) -> None:
        expected = Driver(host_engine(self.models.reference, self.room)).run(self._requests())
        model = self.models.device(FP32, False)
        plain = device_engine(self.machine, model, self.room)
        self._judge("one by one", Driver(plain).run(self._requests()), expected)
        engine = device_engine(self.machine, model, self.room, self.graph_tokens)
        self._judge("ahead, in graphs", self._ahead(engine), expected)
        for preemption in ("recompute", "swap"):
            driver = AheadDriver(engine, num_blocks=self.tight, preemption=preemption)
            self._judge(f"preempted: {preemption}", driver.run(self._requests()), expected)
            preempted = sum(request.preemptions for request in driver.ended.values())
            swapped = sum(len(plan.swap_in) for plan in driver.plans)
            is_so = preempted > 0 and (swapped > 0) == (preemption == "swap")
            self._holds(f"some were preempted: {preemption}", is_so, swapped=swapped)
            engine.reset()
        serving = Serving(engine)
        serving.run(self._requests(), seconds=60.0)
        self._judge("on threads", {r.id: _answer(r) for r in serving.ended.values()}, expected)

    def in_bfloat16(self) -> None:
        model = self.models.device(BF16, False)
        engine = device_engine(self.machine, model, self.room, self.graph_tokens)
        self._judge_greedy("bf16", self._ahead(engine), BF16)

    def deterministic(self) -> None:
        """Each alone, in chunks of a few tokens, against all together, preempted too."""
        model = self.models.device(self.machine.pick(BF16, FP32), True)
        plain = device_engine(self.machine, model, self.room)
        expected: Answers = {}
        for request in self._requests():
            expected |= Driver(plain, max_step_tokens=self.machine.pick(37, 7)).run([request])
            plain.reset()
        engine = device_engine(self.machine, model, self.room, self.graph_tokens)
        self._same("deterministic, together", self._ahead(engine), expected)
        tight = self._ahead(engine, num_blocks=self.tight)
        self._same("deterministic, preempted", tight, expected)

    def _requests(self) -> list[Request]:
        return [fresh(request) for request in (*self.greedy, *self.drawn)]

    def _ahead(self, engine: ModelEngine, **settings: int) -> Answers:
        answers = AheadDriver(engine, **settings).run(self._requests())
        engine.reset()
        return answers

    def _judge(self, how: str, answers: Answers, expected: Answers) -> None:
        """Greedy ones by the logits that they come from, drawn ones by the CPU's draws."""
        self._judge_greedy(how, answers, FP32)
        same = sum(answers[request.id] == expected[request.id] for request in self.drawn)
        self._holds(f"{how}: drawn", same == len(self.drawn), same=same)

    def _judge_greedy(self, how: str, answers: Answers, dtype: torch.dtype) -> None:
        reference = self.models.reference
        gap = max(_gap(reference, request.tokens, answers[request.id]) for request in self.greedy)
        self._holds(f"{how}: greedy", gap <= GAPS[dtype], gap=gap, allowed=GAPS[dtype])

    def _same(self, how: str, answers: Answers, expected: Answers) -> None:
        same = sum(answers[name] == answer for name, answer in expected.items())
        self._holds(how, same == len(expected), same=same)

    def _holds(self, what: str, is_true: bool, **values: object) -> None:
        self.report.holds(f"{self.name}, {what}", is_true, **values)


def _answer(request: Request) -> list[int]:
    return request.tokens[request.num_prompt :]


def _gap(model: Llama, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """How far the tokens of a greedy answer lie below the largest logits, in their deviations."""
    known = [*prompt, *answer[:-1]]
    count = len(known)
    num_blocks = -(-count // BLOCK_SIZE)
    inputs = Inputs(
        tokens=torch.tensor(known, dtype=torch.int32),
        positions=torch.arange(count, dtype=torch.int32),
        slot_mapping=torch.arange(count),
        block_tables=torch.arange(num_blocks, dtype=torch.int32)[None],
        cu_seqlens=torch.tensor([0, count], dtype=torch.int32),
        lengths=torch.tensor([count], dtype=torch.int32),
        last=torch.arange(len(prompt) - 1, count),
    )
    logits: Tensor = model.forward(inputs, make_cache(model, Room(num_blocks, 1, count)))
    chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
    return float(((logits.amax(-1) - chosen) / logits.std(-1)).max())
