"""What people look at: the hash `status` and the stream `timeline`, as JSON; pure."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import orjson

from common.bus import SetStatus, Status, Write
from common.hashes import STATUS_FIELD, status_value
from common.messages import RequestId, StepPlan
from scheduler.core.decision import View
from scheduler.fleet import Fleet, Worker
from scheduler.ledger import Account, Ledger

MAX_LISTED = 200  # requests of a kind that `status` shows
RATE_SECONDS = 10.0  # rates are means over the last ten seconds


def timeline_entry(worker: Worker, plan: StepPlan) -> bytes:
    """One iteration: who took part, with how many tokens; who came, who had to step back."""
    core = worker.core
    return orjson.dumps(
        {
            "worker": worker.id,
            "step": plan.step,
            "tokens": plan.num_tokens,
            "chunks": [(chunk.request_id, chunk.count) for chunk in plan.chunks],
            "admitted": [row.request_id for row in plan.admitted],
            "preempted": core.last.preempted,
            "short": core.last.short,
            "passed": core.last.passed,
            "running": len(core.running),
            "waiting": len(core.waiting),
            "free_blocks": core.pool.num_free,
        }
    )


def dead_entry(account: Account) -> bytes:
    """A request that ends workers, with all that is needed to find out why."""
    request, submit = account.request, account.submission.submit
    return orjson.dumps(
        {
            "request": request.id,
            "tenant": request.tenant,
            "deaths": account.deaths,
            "tokens": request.tokens,
            "num_prompt": request.num_prompt,
            "sampling": asdict(request.sampling),
            "ending": asdict(request.ending),
            "frame": dict(submit.frame),
        }
    )


class Rates:
    """Tokens and ends a second, from counts that are told now and then."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def note(self, now: float, tokens: int, ends: int) -> tuple[float, float]:
        seen = self._seen
        seen.append((now, tokens, ends))
        while len(seen) > 2 and seen[0][0] < now - RATE_SECONDS:
            seen.popleft()
        then, old_tokens, old_ends = seen[0]
        span = now - then
        if span <= 0:
            return 0.0, 0.0
        return (tokens - old_tokens) / span, (ends - old_ends) / span


@dataclass(frozen=True, slots=True)
class Progress:
    """What a leader counts as time goes on."""

    epoch: int
    beat: int
    steps: int
    tokens_per_second: float
    ends_per_second: float


def summary(
    fleet: Fleet, ledger: Ledger, suspects: Mapping[RequestId, Account], progress: Progress
) -> Status:
    """`suspects` are those that wait in the quarantine's line."""
    cores = [worker.core for worker in fleet.workers.values()]
    nowhere = [*fleet.unassigned.values(), *(account.request for account in suspects.values())]
    num_waiting = sum(len(core.waiting) for core in cores) + len(nowhere)
    num_held = sum(
        account.request.held for account in ledger.accounts.values() if not account.is_done
    )
    ends_per_second = max(progress.ends_per_second, 1 / RATE_SECONDS)
    return Status(
        epoch=progress.epoch,
        beat=progress.beat,
        steps=progress.steps,
        num_waiting=num_waiting,
        num_held=num_held,
        num_running=sum(len(core.running) for core in cores),
        waiting_tokens=sum(core.waiting.num_tokens for core in cores)
        + sum(request.num_pending for request in nowhere if not request.held),
        tokens_per_second=round(progress.tokens_per_second, 1),
        wait_seconds=round(max(num_waiting - num_held, 0) / ends_per_second, 1),
    )


def status_writes(fleet: Fleet, suspects: Iterable[RequestId], status: Status) -> list[Write]:
    """The fields `summary`, `workers`, `running` and `waiting`."""
    workers = fleet.workers.values()
    unassigned = [{"request": request, "reason": "suspect"} for request in suspects]
    unassigned += (
        {"request": request, "reason": "no_worker"}
        for request in islice(fleet.unassigned, MAX_LISTED)
    )
    waiting = [_row(w, view) for w in workers for view in w.core.line(MAX_LISTED)]
    running = [_row(w, view) for w in workers for view in w.core.rows()[:MAX_LISTED]]
    return [
        SetStatus(STATUS_FIELD, status_value(status)),
        SetStatus("workers", orjson.dumps([_worker(w) for w in workers])),
        SetStatus("running", _lines(running)),
        SetStatus("waiting", _lines([*waiting, *unassigned])),
    ]


def _worker(worker: Worker) -> dict[str, Any]:
    core = worker.core
    return {
        "worker": worker.id,
        "device": worker.hello.device,
        "model": worker.hello.model,
        "running": len(core.running),
        "waiting": len(core.waiting),
        "free_blocks": core.pool.num_free,
        "num_blocks": core.pool.num_blocks,
        "step": worker.cursor,
    }


def _row(worker: Worker, view: View) -> dict[str, Any]:
    return {
        "request": view.request_id,
        "worker": worker.id,
        "state": view.status.name,
        "tenant": view.tenant,
        "priority": view.priority,
        "prompt": view.num_prompt,
        "output": view.num_output,
        "computed": view.num_computed,
        "blocks": view.num_blocks,
        "preemptions": view.preemptions,
        "reason": view.reason,
    }


def _lines(rows: Iterable[dict[str, Any]]) -> bytes:
    return orjson.dumps(list(rows)[:MAX_LISTED])
