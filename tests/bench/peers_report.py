"""The figures of several rounds as one table, and as a section of a page."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.peers_workload import Figures, Sizes

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
ROWS = {
    "single_rate": "1 stream: output tokens/s",
    "single_itl": "1 stream: ITL p50, ms",
    "single_ttft": "1 stream: TTFT p50, ms",
    "many_rate": "16 streams: output tokens/s",
    "many_ttft": "16 streams: TTFT p50, ms",
    "many_itl": "16 streams: ITL p50, ms",
    "many_itl_p99": "16 streams: ITL p99, ms",
    "gap": "8 streams, a long prompt arrives: longest gap, ms",
    "gap_ttft": "8 streams, a long prompt arrives: its TTFT, ms",
    "gap_usual": "8 streams, before it: gap p50, ms",
    "start": "from start to ready, s",
    "others": "cores kept busy by other programs",
}
NO_RATIO = ("others",)


@dataclass(frozen=True)
class Run:
    """One server in one round."""

    server: str
    figures: Figures
    texts: tuple[str, ...]

    def __str__(self) -> str:
        f = self.figures
        return (
            f"{self.server}: {f['single_rate']:.1f} tokens/s alone, {f['many_rate']:.1f} together,"
            f" gap {f['gap']:.0f} ms; others kept {f['others']:.2f} cores busy"
        )


def as_table(runs: Sequence[Run], ours: str, theirs: str) -> str:
    """Medians over the rounds, (smallest to largest), and the ratio of the medians."""
    lines = [f"| | {ours} | {theirs} | ratio |", "|---|---|---|---|"]
    for name, label in ROWS.items():
        a, b = ([run.figures[name] for run in runs if run.server == s] for s in (ours, theirs))
        ratio = "" if name in NO_RATIO else f"{statistics.median(a) / statistics.median(b):.2f}"
        lines.append(f"| {label} | {_cell(a)} | {_cell(b)} | {ratio} |")
    return "\n".join(lines)


def as_section(facts: Sequence[str], table: str, sizes: Sizes) -> str:
    workload = (
        f"{sizes.single_requests} requests one by one, then {sizes.many_requests} at concurrency"
        f" {sizes.concurrency}, each {sizes.prompt_tokens} tokens in and {sizes.output_tokens} out;"
        f" then {sizes.gap_streams} streams that decode while a prompt of"
        f" {sizes.long_prompt_tokens} tokens arrives."
    )
    listed = "\n".join(f"- {fact}" for fact in facts)
    return f"{workload} Medians over the rounds, in brackets the range.\n\n{listed}\n\n{table}"


def replace_section(page: str, section: str) -> str:
    """The page with what stands between the marks replaced; ValueError without marks."""
    before, found, rest = page.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found or not found_end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{section}\n{END}{after}"


def _cell(values: Sequence[float]) -> str:
    middle = statistics.median(values)
    if len(values) == 1:
        return _number(middle)
    return f"{_number(middle)} ({_number(min(values))} to {_number(max(values))})"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
