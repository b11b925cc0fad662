"""Tables of `./chairlift queue`: what waits and runs, and the last steps; pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WHY = {
    None: "runs",
    "new": "came after the last step was planned",
    "held": "is held: ./chairlift queue release lets it go",
    "drained": "its tenant is drained: ./chairlift queue release tenant:… lets it go",
    "isolation": "another one, with which workers died, runs alone on its worker",
    "prefix": "another one computes the prefix that both share",
    "behind": "others before it wait",
    "promised": "stepped back, and tokens of it are still under way",
    "shortage": "rows that run lack cache blocks, so nobody is admitted",
    "closed": "the batch takes nobody now",
    "no_seat": "all seats are taken (--max-running)",
    "no_tokens": "the step's token budget is used up (--max-step-tokens)",
    "no_blocks": "too few cache blocks are free",
    "no_worker": "no worker takes it: there is none, or none that can hold it",
    "suspect": "workers died with it: it waits to run alone",
    "recompute": "stepped back: it has to be computed again",
    "swap": "stepped back: its blocks are in host memory",
    "displaced": "stepped back for a more urgent one",
}
STATES = {"RUNNING": "runs", "SWAPPED": "swapped"}


def describe(status: Mapping[str, Any]) -> list[str]:
    """The lines of the listing, from the fields of `status`."""
    summary = status.get("summary", {})
    lines = [
        f"{summary.get('num_running', 0)} running, {summary.get('num_waiting', 0)} waiting, "
        f"{summary.get('tokens_per_second', 0):g} tokens/s, step {summary.get('steps', 0)} "
        f"of epoch {summary.get('epoch', 0)}",
        f"one that comes now would start in about {summary.get('wait_seconds', 0):.1f} s; "
        f"steps are predicted within {summary.get('cost_error', 0):.0%}",
    ]
    workers = [
        (
            worker["worker"],
            worker["device"],
            "draining" if worker.get("draining") else "",
            worker["running"],
            worker["waiting"],
            f"{worker['free_blocks']}/{worker['num_blocks']}",
            f"{worker.get('wait_seconds', 0):.1f} s",
        )
        for worker in status.get("workers", [])
    ]
    heads = ("WORKER", "DEVICE", "", "RUNNING", "WAITING", "FREE BLOCKS", "WAIT")
    lines += ["", *table(heads, workers)]
    requests = [
        (
            row["request"],
            STATES.get(row.get("state", ""), "waits"),
            row.get("tenant", ""),
            row.get("prompt", ""),
            row.get("output", ""),
            row.get("blocks", ""),
            WHY.get(row["reason"], row["reason"]),
        )
        for row in [*status.get("running", []), *status.get("waiting", [])]
    ]
    heads = ("REQUEST", "STATE", "TENANT", "PROMPT", "OUTPUT", "BLOCKS", "WHY")
    return [*lines, "", *table(heads, requests)]


def describe_steps(entries: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A line an iteration, oldest first; what a step took is told by a later entry."""
    took = {
        (entry["worker"], step): seconds
        for _, entry in entries
        for step, seconds in entry["seconds"]
    }
    rows = []
    for name, entry in entries:
        seconds = took.get((entry["worker"], entry["step"]))
        rows.append(
            (
                name,
                f"{entry['at']:.3f}",
                entry["worker"],
                entry["step"] or "",
                f"{entry['tokens']}/{entry['budget']}",
                len(entry["chunks"]),
                "" if seconds is None else f"{seconds * 1000:.1f}",
                len(entry["came"]),
                len(entry["admitted"]),
                len(entry["preempted"]),
                len(entry["ended"]),
                entry["running"],
                entry["waiting"],
                entry["free_blocks"],
                _first(entry["passed"]),
            )
        )
    heads = (
        *("ENTRY", "AT", "WORKER", "STEP", "TOKENS", "ROWS", "MS", "CAME", "ADMITTED"),
        *("PREEMPTED", "ENDED", "RUNNING", "WAITING", "FREE", "PASSED OVER"),
    )
    return table(heads, rows)


def _first(passed: Sequence[Sequence[str]]) -> str:
    if not passed:
        return ""
    (request, reason), more = passed[0], len(passed) - 1
    return f"{request}: {reason}" + (f", and {more} more" if more else "")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns as wide as they must be."""
    cells = [list(heads), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
