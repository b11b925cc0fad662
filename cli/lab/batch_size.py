"""A step reads all weights of the model once, however many requests share it. So tokens per second
rise with the batch almost for nothing, as long as reading takes longer than computing; each user
waits a little longer for every token. Beyond the knee, where arithmetic takes over, more seats only
make everybody slower.

Source: common knowledge of the field, after the roofline model (Williams et al., CACM 2009). So
many streams as there are seats run in a closed loop: when one ends, the next begins. The knee is
taken to be the first size whose doubling brings less than half as much again (x 1.5).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cli.bench import run
from cli.bench.options import Options
from cli.bench.report import Report
from cli.lab.errors import LabError
from cli.lab.experiment import Setting
from cli.lab.server import up
from cli.lab.simulator import simulate
from cli.lab.text import bars, milliseconds, number, table

TITLE = "Throughput against batch size, and what each user pays"
SIMULATED_SEATS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
REAL_SEATS = (1, 2, 4, 8, 16, 32)
ENOUGH = 1.5  # more throughput by twice the seats


@dataclass(frozen=True)
class Point:
    seats: int
    tokens_per_second: float
    tpot: float  # seconds, mean

    @property
    def of_each(self) -> float:
        """Tokens per second that a user sees."""
        return 1 / self.tpot


def simulated(setting: Setting) -> str:
    seats = SIMULATED_SEATS[:4] if setting.quick else SIMULATED_SEATS
    settings = {"cost": "h200-8b", "prompt_tokens": 128, "output_tokens": 128, "max_rows": 4096}
    settings |= {"arrivals": "even", "rate": 1e6, "num_blocks": 65536}
    cases = {f"s{n}": {"max_running": n, "requests": 4 * n} for n in seats}
    found = simulate(settings, cases)
    points = [
        Point(n, case["output_tokens_per_second"], case["tpot_seconds"]["mean"])
        for n, case in zip(seats, found.values(), strict=True)
    ]
    return "Llama 3 8B on an H200, by roofline; prompts and answers of 128 tokens.\n\n" + _report(
        points
    )


def real(setting: Setting) -> str:
    seats = REAL_SEATS[:3] if setting.quick else REAL_SEATS
    output_tokens = 16 if setting.quick else 64
    with up(setting.data_dir) as pool:
        asyncio.run(run(_options(pool.url, 2, 2, 8)))  # whatever the first requests wake up
        points = []
        for n in seats:
            report = asyncio.run(run(_options(pool.url, n, max(3, 2 * n), output_tokens)))
            points.append(_point(n, report))
    return f"Prompts of 32 tokens, answers of {output_tokens}.\n\n" + _report(points)


def _options(url: str, concurrency: int, requests: int, output_tokens: int) -> Options:
    return Options(
        url=url,
        concurrency=concurrency,
        requests=requests,
        prompt_tokens=32,
        output_tokens=output_tokens,
        seed=concurrency,
    )


def _point(seats: int, report: Report) -> Point:
    if report.num_failed:
        raise LabError(f"{report.num_failed} requests failed: {report.errors}")
    paces = report.latencies()["TPOT"]
    return Point(seats, report.rate(report.output_tokens), sum(paces) / len(paces))


def knee(points: Sequence[Point]) -> int | None:
    for one, double in pairwise(points):
        if double.tokens_per_second < ENOUGH * one.tokens_per_second:
            return one.seats
    return None


def _report(points: Sequence[Point]) -> str:
    first = points[0]
    rows = [
        (
            point.seats,
            number(point.tokens_per_second),
            f"{point.tokens_per_second / first.tokens_per_second:.2f}",
            number(point.of_each),
            milliseconds(point.tpot),
        )
        for point in points
    ]
    heads = ("seats", "tokens/s", "by those of one", "tokens/s of each user", "TPOT mean, ms")
    drawn = bars([(f"{point.seats}", point.tokens_per_second) for point in points], " tokens/s")
    found = knee(points)
    told = (
        f"The knee is at a batch of {found}." if found else "No knee up to the last of these sizes."
    )
    return f"{table(heads, rows)}\n\n{drawn}\n\n{told}\n"
