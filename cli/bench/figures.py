"""The figures by which runs are compared: one number each, then medians and ranges over repeats."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cli.bench.options import Plan
from cli.bench.report import Report, percentile

Figures = Mapping[str, float]  # without those of which a run has none


@dataclass(frozen=True)
class Run:
    server: str
    value: float | None  # of what is swept
    repeat: int
    report: Report


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """What the repeats of one server and one swept value came to."""

    server: str
    value: float | None
    figures: Mapping[str, Spread]
    ratios: Figures  # of medians, to those of the first server; empty for that one
    num_failed: int
    num_requests: int


def _latency(name: str, percent: float) -> Callable[[Report], float | None]:
    def of(report: Report) -> float | None:
        ranked = sorted(report.latencies()[name])
        return 1e3 * percentile(ranked, percent) if ranked else None

    return of


KINDS: dict[str, Callable[[Report], float | None]] = {
    "output tokens/s": lambda report: report.rate(report.output_tokens),
    "prompt tokens/s": lambda report: report.rate(report.prompt_tokens),
    "requests/s": lambda report: report.rate(len(report.done)),
    **{
        f"{name} p{percent}, ms": _latency(name, percent)
        for name in ("TTFT", "TPOT", "ITL", "E2E")
        for percent in (50, 99)
    },
    "longest gap, ms": lambda report: 1e3 * report.longest_gap,
    "good, %": lambda report: 100 * report.good_share if report.targets.are_given else None,
    "good requests/s": lambda report: (
        report.rate(report.num_good) if report.targets.are_given else None
    ),
}


def figures(report: Report) -> Figures:
    if not report.done:
        return {}
    found = {name: figure(report) for name, figure in KINDS.items()}
    return {name: value for name, value in found.items() if value is not None}


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def lines(plan: Plan, runs: Sequence[Run]) -> list[Line]:
    """By swept value, then by server."""
    found: list[Line] = []
    for value in plan.values:
        first: Figures = {}
        for name, _ in plan.servers:
            mine = [run for run in runs if (run.server, run.value) == (name, value)]
            spreads = _spreads([figures(run.report) for run in mine])
            medians = {figure: of.median for figure, of in spreads.items()}
            failed = sum(run.report.num_failed for run in mine)
            asked = sum(len(run.report.samples) for run in mine)
            found.append(Line(name, value, spreads, _ratios(medians, first), failed, asked))
            if name == plan.servers[0][0]:
                first = medians
    return found


def _spreads(repeats: Iterable[Figures]) -> dict[str, Spread]:
    gathered: dict[str, list[float]] = {}
    for found in repeats:
        for name, value in found.items():
            gathered.setdefault(name, []).append(value)
    return {name: spread(values) for name, values in gathered.items()}


def _ratios(medians: Figures, first: Figures) -> Figures:
    return {name: value / first[name] for name, value in medians.items() if first.get(name)}
