"""Iteration-level scheduling serves far more requests at the same latency than batches that stay
together.

Source: Orca (OSDI 2022), section 6.2: prompts of U(32, 512) tokens, answers of U(1, 128), Poisson
arrivals. For GPT-3 175B at a median normalised latency (end-to-end latency by tokens of the answer)
of 190 ms, twice that of an undisturbed request, Orca serves 6.81 requests/s and FasterTransformer
0.185: 36.9 times as many. Their baseline is another engine, which batches requests well only when
they are alike; its best batch sizes were 1 or 8. Ours is the ratio of throughputs at equal latency
of *one* system, with only `--batching` changed: it has none of the engine's share in that factor,
and must be smaller.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cli.lab.experiment import Setting
from cli.lab.records import median, records
from cli.lab.simulator import simulate
from cli.lab.text import milliseconds, number, table

TITLE = "Continuous against static batching at equal latency"
THEIRS = 36.9
LEVELS = (1.5, 2.0, 3.0, 5.0)  # times the latency of an undisturbed request
RATES = [2 ** (i / 2) for i in range(-2, 15)]  # requests a second: 0.5 to 128
SEATS = 32


@dataclass(frozen=True)
class Load:
    rate: float  # requests a second that end
    latency: float  # seconds a token, median


def simulated(setting: Setting) -> str:
    rates = RATES[4::4] if setting.quick else RATES
    requests = 100 if setting.quick else 1500
    settings = {
        "cost": "h200-8b",
        "requests": requests,
        "prompt_tokens": "uniform:32:512",
        "output_tokens": "uniform:1:128",
        "max_running": SEATS,
        "prefix_cache": "off",
    }
    alone = simulate(settings, {"alone": {"rate": 0.05, "requests": 200}})["alone"]
    base = median(one.seconds_per_token for one in records(alone))
    curves = {
        batching: [
            Load(case["requests_per_second"], median(r.seconds_per_token for r in records(case)))
            for case in simulate(
                {**settings, "batching": batching},
                {f"r{i}": {"rate": r} for i, r in enumerate(rates)},
            ).values()
        ]
        for batching in ("static", "continuous")
    }
    return _report(base, curves)


def rate_at(curve: Sequence[Load], latency: float) -> float:
    """Where the curve first passes the latency, between two loads by logarithms; else nan."""
    for below, above in pairwise(curve):
        if below.latency <= latency < above.latency:
            share = math.log(latency / below.latency) / math.log(above.latency / below.latency)
            rate: float = below.rate * (above.rate / below.rate) ** share
            return rate
    return math.nan


def _report(base: float, curves: dict[str, list[Load]]) -> str:
    rows = []
    for level in LEVELS:
        static, continuous = (rate_at(curves[name], level * base) for name in curves)
        cells = (f"{level:g} x", milliseconds(level * base), number(static), number(continuous))
        rows.append((*cells, number(continuous / static)))
    heads = ("latency", "ms a token", "static, requests/s", "continuous, requests/s", "ratio")
    points = [
        (f"{a.rate:.1f}", milliseconds(a.latency), f"{b.rate:.1f}", milliseconds(b.latency))
        for a, b in zip(*curves.values(), strict=True)
    ]
    by_load = table(
        ("static, requests/s", "ms a token", "continuous, requests/s", "ms a token"), points
    )
    at_two = rows[LEVELS.index(2.0)][-1]
    return (
        f"Llama 3 8B on an H200, by roofline, with {SEATS} seats. An undisturbed request takes "
        f"{milliseconds(base)} ms a token, median.\n\n{table(heads, rows)}\n\n"
        f"At twice the undisturbed latency {at_two} times the throughput; the paper's {THEIRS} "
        f"compares two systems.\n\nMedian normalised latency at each load:\n\n{by_load}\n"
    )
