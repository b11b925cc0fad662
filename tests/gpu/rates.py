"""What the machine is, and the rates of its memory and arithmetic, of which all floors are made."""

import json
import platform
from dataclasses import dataclass
from pathlib import Path

import torch
import triton

from tests.gpu.machine import Machine
from tests.gpu.report import Report


@dataclass(frozen=True)
class Rates:
    bytes_a_second: float  # read and written by a copy
    flops_a_second: float  # of a matrix product in bfloat16, over random numbers

    def floor_seconds(self, num_bytes: float, flops: float) -> float:
        return max(num_bytes / self.bytes_a_second, flops / self.flops_a_second)


def rates(machine: Machine, report: Report) -> None:
    report.row(
        **machine.describe(),
        python=platform.python_version(),
        torch=torch.__version__,
        triton=triton.__version__,
    )
    found = measure(machine)
    report.row(copy_tb_s=found.bytes_a_second / 1e12, matmul_tflop_s=found.flops_a_second / 1e12)


def known_rates(machine: Machine, report: Report) -> Rates:
    """As the section `rates` found them, or measured now where it has not run."""
    path = Path(report.folder) / "rates.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    for row in rows:
        if "copy_tb_s" in row:
            return Rates(row["copy_tb_s"] * 1e12, row["matmul_tflop_s"] * 1e12)
    return measure(machine)


def measure(machine: Machine) -> Rates:
    return Rates(_copy_rate(machine), _matmul_rate(machine))


def _copy_rate(machine: Machine) -> float:
    size = machine.pick(4 << 30, 1 << 20)
    source = torch.ones(size // 4, device=machine.device)
    target = torch.empty_like(source)
    return 2 * size / machine.seconds(lambda: target.copy_(source))


def _matmul_rate(machine: Machine) -> float:
    width = machine.pick(8192, 128)
    a, b = torch.randn(2, width, width, device=machine.device).bfloat16()
    return 2 * width**3 / machine.seconds(lambda: a @ b)
