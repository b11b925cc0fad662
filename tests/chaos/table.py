"""`python -m tests.chaos --table`: one fault again and again under a steady load, and its cost.

Each row is a system of its own: eight clients with a hundred requests each, all of which come back
when they are cut off; the fault comes as often as that lasts, each time to a system that is whole.
"""

import asyncio
import itertools
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from tests.chaos import faults
from tests.chaos.faults import Fault
from tests.chaos.report import shares, silences, stalls
from tests.chaos.run import FIRST_SECONDS, Load, Options, Outcome, strain
from tests.chaos.site import COUNTS, Site
from tests.chaos.wishes import Wishes

REQUESTS = 100  # of each client
WHOLE_SECONDS = 60.0  # until all that a fault ended is back
NOTICED_SECONDS = 3.0  # after which whoever died has been missed
GAP_SECONDS = (2.0, 5.0)  # between a system that is whole and the next fault


@dataclass(frozen=True)
class Row:
    title: str
    faults: Sequence[tuple[str, str, float]]  # action, role, seconds: in turn
    target_seconds: float | None = None  # of silences, the 99th percentile
    is_beyond_restart: bool = False  # the target is counted from when the server answers again
    num_workers: int = COUNTS["worker"]


ROLLING = ("gateway-0", "gateway-1", "scheduler-0", "scheduler-1", "worker-0", "worker-1", "redis")
ROWS = {
    "kill-gateway": Row("kill -9 of a gateway", [("kill", "gateway", 0.0)], 2.0),
    "kill-leader": Row("kill -9 of the scheduler that leads", [("kill", "leader", 0.0)], 5.0),
    "kill-standby": Row("kill -9 of the one that stands by", [("kill", "standby", 0.0)], 5.0),
    "kill-worker": Row("kill -9 of one of two workers", [("kill", "worker", 0.0)], 3.0),
    "kill-only-worker": Row("kill -9 of the only worker", [("kill", "worker", 0.0)], num_workers=1),
    "kill-redis": Row("kill -9 of Redis", [("kill", "redis", 0.0)], 2.0, is_beyond_restart=True),
    "kill-all": Row("kill -9 of all at once", [("kill", faults.ALL, 0.0)]),
    "pause-leader": Row("SIGSTOP of the leader, 4 s", [("pause", "leader", 4.0)], 5.0),
    "pause-worker": Row("SIGSTOP of a worker, 4 s", [("pause", "worker", 4.0)], 3.0),
    "partition-leader": Row("leader cut off from Redis, 5 s", [("partition", "leader", 5.0)], 5.0),
    "partition-worker": Row("worker cut off from Redis, 5 s", [("partition", "worker", 5.0)], 3.0),
    "rolling": Row(
        "SIGTERM to each process in turn", [("terminate", name, 0.0) for name in ROLLING]
    ),
}


def main(names: Sequence[str], seed: int, path: Path | None) -> int:
    """0: nothing failed in any row, and all is as fast as it is meant to be."""
    rows = []
    print(HEAD)
    for name in names:
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-"))
        outcome = uvloop.run(_run(ROWS[name], seed, folder))
        rows.append({"row": name, **figures(ROWS[name], outcome), "logs": f"{folder}/logs"})
        print(line(ROWS[name], rows[-1]), flush=True)
        for text in rows[-1]["wrong"]:
            print(f"  {text}", flush=True)
        if path:
            path.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(row["failed"] or row["wrong"] or not row["is_met"] for row in rows) else 0


async def _run(row: Row, seed: int, folder: Path) -> Outcome:
    site = Site(folder, COUNTS | {"worker": row.num_workers})
    load = Load(Wishes.steady, REQUESTS)
    return await strain(site, Options(seed=seed), load, partial(_again_and_again, row))


async def _again_and_again(
    row: Row, site: Site, outcome: Outcome, _tasks: asyncio.TaskGroup
) -> None:
    rng = random.Random(outcome.options.seed)
    await asyncio.sleep(FIRST_SECONDS)
    for action, role, seconds in itertools.cycle(row.faults):
        fault = Fault(action, role, seconds)
        outcome.faults.append(fault)
        await faults.inject(site, fault, rng, ())
        await asyncio.sleep(NOTICED_SECONDS)
        await site.until_whole(WHOLE_SECONDS)
        await asyncio.sleep(rng.uniform(*GAP_SECONDS))


def figures(row: Row, outcome: Outcome) -> dict[str, Any]:
    done = [fault for fault in outcome.faults if fault.victims]
    nexts, longest = [], []
    for fault, until in _with_ends(done):
        nexts += stalls(fault, outcome.answers)
        longest += silences(fault, until, outcome.answers)
    silence = shares(longest)
    restart = max((fault.server_seconds for fault in done), default=0.0)
    target = row.target_seconds
    if target is not None and row.is_beyond_restart:
        target += restart
    return {
        "requests": len(outcome.answers),
        "failed": sum(answer.outcome != "whole" for answer in outcome.answers),
        "faults": len(done),
        "answers": len(longest),
        "next": shares(nexts),
        "silence": silence,
        "restart_seconds": round(restart, 2),
        "target_seconds": target,
        "is_met": target is None or (silence["p99"] or 0.0) <= target,
        "tokens_needed": outcome.tokens_needed,
        "tokens_again": outcome.tokens_computed - outcome.tokens_needed,
        "in_order": [
            {
                "at": round(fault.at - outcome.began_at, 2),
                "kind": fault.kind,
                "victims": fault.victims,
                "silence": max(silences(fault, until, outcome.answers), default=None),
            }
            for fault, until in _with_ends(done)
        ],
        "load": [round(load, 1) for load in outcome.load],
        "wrong": outcome.wrong,
    }


def _with_ends(done: Sequence[Fault]) -> list[tuple[Fault, float]]:
    """With when the next one came, monotonic seconds."""
    starts = [fault.at for fault in done[1:]]
    return list(zip(done, [*starts, float("inf")], strict=False))


HEAD = (
    "| fault | faults | failed | next token p50 | p99 | silence p50 | p99 | longest | target, p99 "
    "| computed again |\n|---|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row, told: dict[str, Any]) -> str:
    """A row of Markdown."""
    target, again = told["target_seconds"], told["tokens_again"]
    cells = [
        row.title,
        str(told["faults"]),
        f"{told['failed']} of {told['requests']}",
        *(_seconds(told["next"][share]) for share in ("p50", "p99")),
        *(_seconds(told["silence"][share]) for share in ("p50", "p99", "max")),
        "" if target is None else f"{target:.1f}" + " missed" * (not told["is_met"]),
        f"{again} ({100 * again / max(1, told['tokens_needed']):.0f} %)",
    ]
    return f"| {' | '.join(cells)} |"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
