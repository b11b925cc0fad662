"""The figures of several rounds as one table, and as a section of a page."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.bench.peers_workload import Figures, Sizes

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
LABELS = {
    "single_rate": "1 stream: output tokens/s",
    "single_itl": "1 stream: ITL p50, ms",
    "single_ttft": "1 stream: TTFT p50, ms",
    "many_rate": "16 streams: output tokens/s",
    "many_ttft": "16 streams: TTFT p50, ms",
    "many_itl": "16 streams: ITL p50, ms",
    "many_itl_p99": "16 streams: ITL p99, ms",
    "wide_rate": "64 streams: output tokens/s",
    "prompt_rate": "prompts of 1,024 tokens: prompt tokens/s",
    "gap": "8 streams, a long prompt arrives: longest gap, ms",
    "gap_ttft": "8 streams, a long prompt arrives: its TTFT, ms",
    "gap_usual": "8 streams, before it: gap p50, ms",
    "start": "from start to ready, s",
    "others": "cores kept busy by other programs",
}
MORE_IS_BETTER = ("single_rate", "many_rate", "wide_rate", "prompt_rate")
NO_RATIO = ("others",)


@dataclass(frozen=True)
class Run:
    """One server in one round."""

    server: str
    figures: Figures
    texts: tuple[str, ...]

    def __str__(self) -> str:
        named = (f"{LABELS[name]} {_number(value)}" for name, value in self.figures.items())
        return f"{self.server}: {'; '.join(named)}"


def as_table(runs: Sequence[Run], ours: Sequence[str], others: Sequence[str]) -> str:
    """Medians over the rounds (smallest to largest); behind them each of ours by the best other."""
    titles = ["", *ours, *others, *(f"{name} / best other" for name in ours)]
    lines = [_row(titles), "|" + "---|" * len(titles)]
    for name, label in LABELS.items():
        found = {
            server: [run.figures[name] for run in runs if run.server == server]
            for server in (*ours, *others)
        }
        ratios = [_ratio(name, found, server, others) for server in ours]
        lines.append(_row([label, *map(_cell, found.values()), *ratios]))
    return "\n".join(lines)


def _ratio(
    name: str, found: Mapping[str, Sequence[float]], ours: str, others: Sequence[str]
) -> str:
    if name in NO_RATIO:
        return ""
    pick = max if name in MORE_IS_BETTER else min
    best = pick(others, key=lambda other: statistics.median(found[other]))
    ratio = statistics.median(found[ours]) / statistics.median(found[best])
    return f"{ratio:.2f} ({best})" if len(others) > 1 else f"{ratio:.2f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def as_section(facts: Sequence[str], table: str, sizes: Sizes) -> str:
    workload = (
        f"{sizes.single_requests} requests one by one, then {sizes.many_requests} at concurrency"
        f" {sizes.concurrency} and {sizes.wide_requests} at {sizes.wide_concurrency}, each"
        f" {sizes.prompt_tokens} tokens in and {sizes.output_tokens} out; then {sizes.prompts}"
        f" prompts of {sizes.prompts_tokens} tokens, {sizes.prompts_concurrency} at a time, for one"
        f" token each; then {sizes.gap_streams} streams that decode while a prompt of"
        f" {sizes.long_prompt_tokens} tokens arrives. Medians over the rounds, in"
        " brackets the range."
    )
    listed = "\n".join(f"- {fact}" for fact in facts)
    return f"{workload}\n\n{listed}\n\n{table}"


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
