"""`./chairlift queue why`: one sentence about where a request stands, with the numbers; pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from common.messages import Journal

Row = Mapping[str, Any]
OTHERS = "rows before it come first"


def explain(status: Mapping[str, Any], row: Row) -> str:
    """Of a row of `status`: why it waits, or how far it is."""
    if row["state"] == "RUNNING":
        return f"{row['request']} {_runs(status, row)}."
    return f"{row['request']} {_history(row)}{_waits(status, row)}."


def told_by_journal(request: str, journal: Journal, *, is_accepted: bool) -> str:
    """Of one that `status` does not list."""
    if journal.end is not None:
        end = journal.end
        error = f" ({end.error})" if end.error else ""
        return f"{request} has ended: {end.reason}{error}, {_count(end.kept, 'token')} of answer."
    if journal.head is not None:
        return f"{request} is open, behind all that the status lists, or moving at this moment."
    if is_accepted:
        return f"{request} was accepted, and no scheduler has read it yet."
    return f"{request} is unknown: it never was, or ended so long ago that its journal is gone."


def find(status: Mapping[str, Any], target: str) -> list[Row]:
    """The rows of a request, or of all choices of a submission."""
    rows: list[Row] = [*status.get("running", ()), *status.get("waiting", ())]
    named = [row for row in rows if row["request"] == target]
    return named or [row for row in rows if row["request"].rpartition(".")[0] == target]


def _runs(status: Mapping[str, Any], row: Row) -> str:
    where, worker = row["worker"], _worker(status, row)
    again = f", after it had to step back {_times(row)}" if row["preemptions"] else ""
    blocks = _count(row["blocks"], "block")
    match row["reason"]:
        case "no_blocks":
            return f"has a row on {where}, and lacks a block: {_free(worker)}, and {OTHERS}{again}"
        case "no_tokens":
            most = worker["max_step_tokens"]
            return f"runs on {where}, and the budget of {most} tokens left it out of the last step"
    if row["output"]:
        return f"runs on {where}: {_count(row['output'], 'token')} of answer, {blocks}{again}"
    done, cached = min(row["computed"], row["prompt"]), row["cached"]
    found = f", {cached} of them found in the cache" if cached else ""
    return f"runs on {where}: {done} of {row['prompt']} prompt tokens are computed{found}{again}"


def _history(row: Row) -> str:
    if row["state"] == "SWAPPED":
        blocks = _count(row["host_blocks"], "block")
        held = "are" if row["host_blocks"] != 1 else "is"
        return f"stepped back {_times(row)}, its {blocks} {held} in host memory, and it "
    if row["preemptions"]:
        return f"stepped back {_times(row)}, has to be computed again, and "
    return ""


def _waits(status: Mapping[str, Any], row: Row) -> str:
    """What keeps it, said so that it follows its name."""
    ahead, blocker = row["position"], row["blocker"]
    if row["reason"] == "behind":
        first = next((r for r in status.get("waiting", ()) if r["request"] == blocker), None)
        why = f" (first: {blocker}, which {_obstacle(status, first)})" if first else ""
        return f"waits: {_count(ahead, 'other')} before it{why}"
    if row["reason"] == "new":
        others = f", {_count(ahead, 'other')} before it" if ahead else ""
        return f"waits: it came after the last step was planned{others}"
    return _obstacle(status, row)


def _obstacle(status: Mapping[str, Any], row: Row) -> str:
    worker, where = _worker(status, row), row["worker"]
    request, tenant, blocker = row["request"], row["tenant"], row["blocker"]
    sentences = {
        "new": "came after the last step was planned",
        "held": f"is held: `./chairlift queue release {request}` lets it go",
        "drained": f"waits: the tenant {tenant} is drained, until "
        f"`./chairlift queue release tenant:{tenant}`",
        "isolation": f"waits while {blocker} runs alone on {where}: workers died with that one",
        "prefix": f"waits until {blocker} has computed the prefix that both share",
        "promised": "waits for tokens of its former row that are still under way",
        "shortage": f"waits: rows that run lack blocks ({_free(worker)}), so nobody is admitted",
        "closed": f"waits: the batch on {where} takes nobody until all of it has ended "
        f"({_count(worker['running'], 'row')} now)",
        "no_seat": f"waits: all {worker['max_running']} seats of {where} are taken",
        "no_tokens": f"waits: the step's {worker['max_step_tokens']} tokens are used up by others",
        "no_blocks": f"lacks {_count(row['missing'], 'block')} ({_free(worker)})",
        "no_worker": _no_worker(status),
        "suspect": "waits to run alone: workers died with it",
    }
    return sentences.get(row["reason"], f"waits: {row['reason']}")


def _no_worker(status: Mapping[str, Any]) -> str:
    workers: Sequence[Row] = status.get("workers", ())
    draining = sum(worker["draining"] for worker in workers)
    if not workers:
        return "waits: there is no worker"
    return (
        f"waits: none of {_count(len(workers), 'worker')} takes it "
        f"({draining} draining, the others joining or too small)"
    )


def _worker(status: Mapping[str, Any], row: Row) -> Row:
    unknown: Row = dict.fromkeys(
        ("running", "max_running", "max_step_tokens", "free_blocks", "num_blocks"), "?"
    )
    workers: Sequence[Row] = status.get("workers", ())
    return next((worker for worker in workers if worker["worker"] == row["worker"]), unknown)


def _free(worker: Row) -> str:
    return f"{worker['free_blocks']} free of {worker['num_blocks']}"


def _count(number: object, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _times(row: Row) -> str:
    times = row["preemptions"]
    return {1: "once", 2: "twice"}.get(times, f"{times} times")
