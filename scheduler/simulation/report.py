"""Figures as tables: one column a case, or one row a tenant."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scheduler.simulation.figures import Figures

Show = Callable[[float], str]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:,.2f}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _milliseconds(value: float) -> str:
    return f"{1000 * value:,.1f}"


LINES: tuple[tuple[str, str, Show], ...] = (
    ("requests that came", "requests", _number),
    ("ended", "ended", _number),
    ("unfinished", "unfinished", _number),
    ("seconds", "seconds", _number),
    ("output tokens/s", "output_tokens_per_second", _number),
    ("all tokens/s", "tokens_per_second", _number),
    ("requests/s", "requests_per_second", _number),
    ("good requests/s", "good_requests_per_second", _number),
    ("steps", "steps", _number),
    ("rows a step", "rows_per_step", _number),
    ("tokens a step", "tokens_per_step", _number),
    ("workers busy", "busy_share", _share),
    ("cache taken", "cache.taken_share", _share),
    ("  at most", "cache.most_taken_share", _share),
    ("  of it wasted", "cache.waste_share", _share),
    ("    kept for later", "cache.reserved_share", _share),
    ("    never used", "cache.useless_share", _share),
    ("prefix hits, tokens", "prefix_hits.token_share", _share),
    ("prefix hits, blocks", "prefix_hits.block_share", _share),
    ("prediction error", "prediction_error", _share),
    ("fairness gap, mean", "fairness.mean_gap", _number),
    ("fairness gap, max", "fairness.max_gap", _number),
)
LATENCIES = ("TTFT", "TPOT", "ITL", "E2E")


def table(cases: Mapping[str, Figures], *, has_goals: bool) -> str:
    """`has_goals`: whether it was said what a good request is."""
    rows = [["", *cases]]
    for label, path, show in LINES:
        if has_goals or path != "good_requests_per_second":
            rows.append([label, *(show(_at(case, path)) for case in cases.values())])
    kinds = sorted({kind for case in cases.values() for kind in case["preemptions"]})
    for kind in kinds:
        counts = (_number(case["preemptions"].get(kind, 0)) for case in cases.values())
        rows.append([f"preemptions, {kind}", *counts])
    for name in LATENCIES:
        rows += _latency_rows(name, list(cases.values()))
    notes = [
        f"{name}: {count} refused: {why}"
        for name, case in cases.items()
        for why, count in case["refused"].items()
    ]
    return "\n".join([*_aligned(rows), *notes])


def tenant_table(case: Figures) -> str:
    """Times in milliseconds."""
    rows = [["tenant", "ended", "prompt", "output", "service"]]
    rows[0] += ["TTFT mean", "p50", "p99", "TPOT mean", "E2E mean", "p99"]
    for name, tenant in case["tenants"].items():
        counts = (tenant[key] for key in ("ended", "prompt_tokens", "output_tokens", "service"))
        ttft, tpot, e2e = (tenant[f"{kind}_seconds"] for kind in ("ttft", "tpot", "e2e"))
        times = (
            *(ttft.get(key) for key in ("mean", "p50", "p99")),
            tpot.get("mean"),
            *(e2e.get(key) for key in ("mean", "p99")),
        )
        rows.append([name, *map(_number, counts), *map(_time, times)])
    return "\n".join(_aligned(rows))


def _latency_rows(name: str, cases: Sequence[Figures]) -> list[list[str]]:
    summaries = [case[f"{name.lower()}_seconds"] for case in cases]
    keys = next((list(found) for found in summaries if found), [])
    return [[f"{name} {key}, ms", *(_time(found.get(key)) for found in summaries)] for key in keys]


def _time(value: float | None) -> str:
    return "-" if value is None else _milliseconds(value)


def _at(case: Figures, path: str) -> float:
    value: Any = case
    for key in path.split("."):
        value = value[key]
    number: float = value
    return number


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        yield f"{first:<{widths[0]}}  {'  '.join(cells)}".rstrip()
