"""Runs as text: one run as a report, servers side by side, or a line for each value of a sweep."""

from collections.abc import Iterable, Sequence

from cli.bench.figures import Line, Run, Spread, lines
from cli.bench.options import Plan

SWEPT_FIGURES = {  # of a line, with shorter heads
    "output tokens/s": "tokens/s",
    "TTFT p50, ms": "TTFT p50",
    "TTFT p99, ms": "TTFT p99",
    "TPOT p50, ms": "TPOT p50",
    "ITL p99, ms": "ITL p99",
    "good, %": "good %",
    "good requests/s": "good/s",
}


def describe(plan: Plan, runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return str(runs[0].report)
    found = lines(plan, runs)
    table = by_value(plan, found) if plan.sweep else side_by_side(found)
    parts = [table, *([_units(plan)] if plan.sweep else []), *remarks(plan, runs)]
    return "\n".join([*parts, "how each is counted: --definitions"])


def _units(plan: Plan) -> str:
    return "latencies in ms" + ("; medians, in brackets the range" if plan.repeats > 1 else "")


def by_value(plan: Plan, found: Sequence[Line]) -> str:
    """A line each; behind a server's own, its ratios to the first."""
    assert plan.sweep is not None
    names = [name for name in SWEPT_FIGURES if any(name in line.figures for line in found)]
    rows = [
        [plan.sweep.name.replace("_", "-"), "server", *(SWEPT_FIGURES[n] for n in names), "failed"]
    ]
    for line in found:
        value = f"{line.value:g}"
        cells = [cell(line.figures[name]) if name in line.figures else "-" for name in names]
        rows.append([value, line.server, *cells, f"{line.num_failed}!" if line.num_failed else "0"])
        if line.ratios:
            ratios = [f"{line.ratios[n]:.3f}" if n in line.ratios else "-" for n in names]
            rows.append([value, f"{line.server} / {plan.servers[0][0]}", *ratios, ""])
    return aligned(rows, text_columns=(1,))


def side_by_side(found: Sequence[Line]) -> str:
    first, *others = found
    names = list(dict.fromkeys(name for line in found for name in line.figures))
    head = [line.server for line in found] + [f"{line.server} / {first.server}" for line in others]
    rows = [["", *head]]
    for name in names:
        cells = [cell(line.figures[name]) if name in line.figures else "-" for line in found]
        ratios = [f"{line.ratios[name]:.3f}" if name in line.ratios else "-" for line in others]
        rows.append([name, *cells, *ratios])
    failed = [f"{line.num_failed}{'!' if line.num_failed else ''}" for line in found]
    rows.append([f"failed of {first.num_requests}", *failed, *("" for _ in others)])
    return aligned(rows, text_columns=(0,))


def remarks(plan: Plan, runs: Iterable[Run]) -> list[str]:
    """What each run has to say of itself, with its name."""
    return [
        f"{run_name(plan, run)}: {text}"
        for run in runs
        for text in (*run.report.notes(), *run.report.failures())
    ]


def run_name(plan: Plan, run: Run) -> str:
    parts = [run.server]
    if plan.sweep:
        parts.append(f"{plan.sweep.name.replace('_', '-')} {run.value:g}")
    if plan.repeats > 1:
        parts.append(f"run {run.repeat + 1} of {plan.repeats}")
    return ", ".join(parts)


def cell(spread: Spread) -> str:
    if spread.low == spread.high:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.low)} to {number(spread.high)})"


def number(value: float) -> str:
    """Three figures that mean something, or more."""
    digits = next((n for n, least in enumerate((100, 10, 1)) if value >= least or not value), 3)
    return f"{value:.{digits}f}"


def aligned(rows: Sequence[Sequence[str]], text_columns: Sequence[int]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if i in text_columns else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
