"""Every kernel against its floor, against what was predicted, and against torch.

Sizes are those of Llama 3.1 8B, as docs/kernels.md counts them. What compiles with torch.compile
comes last: it may take long.
"""

from collections.abc import Iterator

import torch

from tests.gpu.machine import Machine
from tests.gpu.rates import known_rates
from tests.gpu.report import Report
from tests.gpu.timed import Timed, measure
from tests.gpu.times_attention import attention_times
from tests.gpu.times_layers import compiled_times, layer_times
from tests.gpu.times_matmuls import matmul_times
from tests.gpu.times_sampling import sampling_times

DECODE_SHARE, PROMPT_SHARE = 0.85, 0.60


def times(machine: Machine, report: Report) -> None:
    rates = known_rates(machine, report)
    shares: dict[str, list[float]] = {"decode": [], "prompt": []}
    for timed in _all(machine):
        if not report.has_time(timed.needed_seconds):
            report.note(f"no time for {timed.cost.name} and what comes behind it")
            break
        with report.case(timed.cost.name), torch.inference_mode():
            share = measure(machine, report, rates, timed)
            if timed.cost.name.startswith("decode, bf16") and timed.cost.num_rows >= 16:
                shares["decode"].append(share)
            if timed.cost.name == "prompt":
                shares["prompt"].append(share)
    _targets(report, shares)


def _all(machine: Machine) -> Iterator[Timed]:
    """Each made when the one before is done, so that their memory is not held together."""
    yield from attention_times(machine)
    yield from layer_times(machine)
    yield from sampling_times(machine)
    yield from matmul_times(machine)
    yield from compiled_times(machine)


def _targets(report: Report, shares: dict[str, list[float]]) -> None:
    for kind, wanted, of in (
        ("decode", DECODE_SHARE, "bandwidth"),
        ("prompt", PROMPT_SHARE, "matrix rate"),
    ):
        if shares[kind]:
            worst = min(shares[kind])
            name = f"attention, {kind}: least share of the {of}"
            report.target(name, worst, f">= {wanted}", is_met=worst >= wanted)
