"""Attention against its reference: mixed steps of one model's shapes, and all kinds of it."""

from dataclasses import dataclass, field
from typing import Any

import torch

from gpu_worker.kernels.attention import attention_reference
from gpu_worker.kernels.attention_plan import Schedule
from gpu_worker.kernels.attention_triton import attention as attend
from gpu_worker.kernels.attention_triton import schedule_of
from tests.gpu.cases import on_device, poisoned
from tests.gpu.machine import Machine
from tests.gpu.report import Report
from tests.gpu_worker.attention_cases import Sequences, with_fp8_cache
from tests.gpu_worker.kernel_cases import Shape, make_step

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LLAMA_8B, SMALL = Shape(32, 8, 128, 16), Shape(9, 3, 64, 16)


@dataclass(frozen=True)
class Case:
    name: str
    sequences: Sequences  # (query rows, cached tokens)
    dry: Sequences  # in their place
    shape: Shape = LLAMA_8B
    dtype: torch.dtype = BF16
    options: dict[str, Any] = field(default_factory=dict)
    scales: bool = False  # a cache of eight bits, with them
    deterministic: bool = False


DECODE: Sequences = [(1, 1 + 67 * i) for i in range(16)]  # contexts that are not split
LONG: Sequences = [(1, 5000), (1, 3), (1, 2049), (1, 8000)]
FEW: Sequences = [(3, 700), (1, 65), (2, 1300), (4, 4)]
MIXED: Sequences = [(1, 40), (300, 300), (1, 1000), (17, 63), (1, 1), (129, 900)]
CHUNK: Sequences = [(500, 3000), (1, 2000)]
DRY_DECODE: Sequences = [(1, 1), (1, 17), (1, 40)]
DRY_LONG: Sequences = [(1, 1100), (1, 3)]
DRY_MIXED: Sequences = [(1, 9), (20, 33), (1, 1)]

CASES = (
    Case("decode", DECODE, DRY_DECODE),
    Case("decode, splits", LONG, DRY_LONG),
    Case("few rows", FEW, [(3, 20), (1, 5)]),
    Case("mixed", MIXED, DRY_MIXED),
    Case("chunk over splits", CHUNK, [(9, 1050)]),
    Case("prompt", [(2048, 2048)], [(33, 33)]),
)
KINDS = (
    Case("fixed decode, splits", LONG, DRY_LONG, deterministic=True),
    Case("fixed mixed", MIXED, DRY_MIXED, deterministic=True),
    Case("fp8 decode", DECODE, DRY_DECODE, scales=True),
    Case("fp8 mixed", MIXED, DRY_MIXED, scales=True),
    Case("window", LONG, DRY_LONG, options={"window": 700}),
    Case("window, soft cap", MIXED, DRY_MIXED, options={"window": 20, "softcap": 3.0}),
    Case("heads of 64", MIXED, DRY_MIXED, SMALL),
    Case("heads of 64, splits", LONG, DRY_LONG, SMALL),
    Case("heads of 80, fp16", MIXED, DRY_MIXED, Shape(4, 2, 80, 16), FP16),
    Case("heads of 256", DECODE, DRY_DECODE, Shape(4, 2, 256, 32)),
    Case("fp32", MIXED, DRY_MIXED, SMALL, FP32),
)


def attention(machine: Machine, report: Report) -> None:
    _check(machine, report, machine.pick(CASES, CASES[1:5]))


def attention_kinds(machine: Machine, report: Report) -> None:
    _check(machine, report, machine.pick(KINDS, KINDS[1:6:2]))


def _check(machine: Machine, report: Report, cases: tuple[Case, ...]) -> None:
    for case in cases:
        if not report.has_time():
            report.note(f"no time for {case.name} and what comes behind it")
            break
        with report.case(case.name):
            _compare(machine, report, case)


def _compare(machine: Machine, report: Report, case: Case) -> None:
    shape = machine.pick(case.shape, Shape(2, 1, case.shape.head_size, case.shape.block_size))
    step = make_step(machine.pick(case.sequences, case.dry), shape, case.dtype)
    options = {"scale": shape.head_size**-0.5} | case.options
    if case.scales:
        step = with_fp8_cache(step)
        options |= {f"{of}_scale": torch.rand(shape.groups) + 0.5 for of in "kv"}
    expected = attention_reference(*step.tensors, **options)
    given = {
        name: value.to(machine.device) if isinstance(value, torch.Tensor) else value
        for name, value in options.items()
    }
    schedule: Schedule = schedule_of(machine.device, case.deterministic)
    with poisoned():
        actual = attend(*on_device(step, machine.device).tensors, **given, schedule=schedule)
    report.close_to(case.name, actual.flatten(1), expected.flatten(1))
