"""What people look at: the hash `status`, as JSON; pure."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import orjson

from common.bus import SetStatus, Status, Write
from common.hashes import STATUS_FIELD, status_value
from scheduler.core.decision import Reason
from scheduler.core.request import Request
from scheduler.core.request import Status as State
from scheduler.core.views import View, view
from scheduler.fleet import Fleet, Worker
from scheduler.ledger import Account, Ledger
from scheduler.quarantine import Quarantine
from scheduler.totals import Totals

MAX_LISTED = 200  # requests of a kind that `status` shows
RATE_SECONDS = 10.0  # rates are means over the last ten seconds
ASIDE = {Reason.HELD, Reason.DRAINED, Reason.PREFIX}  # nobody waits for them


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
    num_preempted: int = 0
    cached_tokens: int = 0


def summary(fleet: Fleet, ledger: Ledger, quarantine: Quarantine, progress: Progress) -> Status:
    cores = [worker.core for worker in fleet.workers.values()]
    nowhere = [*fleet.unassigned.values(), *_suspects(quarantine)]
    num_waiting = sum(len(core.waiting) for core in cores) + len(nowhere)
    open_requests = (a.request for a in ledger.accounts.values() if not a.is_done)
    num_held = sum(_is_held(request, fleet) for request in open_requests)
    num_ready = max(num_waiting - num_held, 0)
    ends_per_second = max(progress.ends_per_second, 1 / RATE_SECONDS)
    return Status(
        epoch=progress.epoch,
        beat=progress.beat,
        steps=progress.steps,
        num_waiting=num_waiting,
        num_held=num_held,
        num_running=sum(len(core.running) for core in cores),
        waiting_tokens=sum(core.waiting.num_tokens for core in cores)
        + sum(r.num_pending for r in nowhere if not _is_held(r, fleet)),
        tokens_per_second=round(progress.tokens_per_second, 1),
        wait_seconds=round(_wait(fleet, num_ready / ends_per_second), 3),
        cost_error=round(max((core.cost.error for core in cores), default=0.0), 3),
        num_preempted=progress.num_preempted,
        cached_tokens=progress.cached_tokens,
    )


def _wait(fleet: Fleet, otherwise: float) -> float:
    """Seconds until one that comes now would start; without a worker who could tell, a guess."""
    asked = [worker.core for worker in fleet.hiring() if not worker.suspect]
    return min((core.predicted_wait() for core in asked), default=otherwise)


def _suspects(quarantine: Quarantine) -> Iterator[Request]:
    return (account.request for account in quarantine.line.values())


def _is_held(request: Request, fleet: Fleet) -> bool:
    """It goes on only when somebody says so."""
    waits = request.status in {State.WAITING, State.SWAPPED}
    return request.held or (waits and request.tenant in fleet.drained_tenants)


def status_writes(
    fleet: Fleet, quarantine: Quarantine, totals: Totals, status: Status
) -> list[Write]:
    """The fields `summary`, `totals`, `workers`, `running` and `waiting`."""
    workers = fleet.workers.values()
    return [
        SetStatus(STATUS_FIELD, status_value(status)),
        SetStatus("totals", orjson.dumps(totals, option=orjson.OPT_NON_STR_KEYS)),
        SetStatus("workers", orjson.dumps([_worker(w) for w in workers])),
        SetStatus("running", _lines(_running(w) for w in workers)),
        SetStatus(
            "waiting",
            _lines([*(_waiting(w, quarantine) for w in workers), _nowhere(fleet, quarantine)]),
        ),
    ]


def _worker(worker: Worker) -> dict[str, Any]:
    core = worker.core
    return {
        "worker": worker.id,
        "device": worker.hello.device,
        "model": worker.hello.model,
        "draining": worker.is_draining,
        "suspect": worker.suspect,
        "running": len(core.running),
        "waiting": len(core.waiting),
        "max_running": core.limits.max_running,
        "max_step_tokens": core.limits.max_step_tokens,
        "free_blocks": core.pool.num_free,
        "cached_blocks": core.pool.num_idle_cached,
        "num_blocks": core.pool.num_blocks,
        "free_host_blocks": core.host.num_free,
        "num_host_blocks": core.host.num_blocks,
        "backlog_tokens": core.backlog_tokens,
        "wait_seconds": round(core.predicted_wait(), 3),
        "cost_error": round(core.cost.error, 3),
        "step": worker.cursor,
    }


def _running(worker: Worker) -> list[dict[str, Any]]:
    return [_row(v, worker.id, 0) for v in islice(worker.core.rows(), MAX_LISTED)]


def _waiting(worker: Worker, quarantine: Quarantine) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    position = 0
    for waiting in worker.core.line(MAX_LISTED):
        row = _row(waiting, worker.id, position)
        if waiting.reason is Reason.HELD and quarantine.holds(waiting.request_id):
            row |= {"reason": "isolation", "blocker": worker.suspect}
        position += waiting.reason not in ASIDE
        rows.append(row)
    return rows


def _nowhere(fleet: Fleet, quarantine: Quarantine) -> list[dict[str, Any]]:
    """Those that no worker has."""
    suspects = [(request, "suspect") for request in _suspects(quarantine)]
    others = [(r, "no_worker") for r in islice(fleet.unassigned.values(), MAX_LISTED)]
    rows = []
    for position, (request, why) in enumerate([*suspects, *others]):
        reason = Reason.HELD if request.held else why
        if request.tenant in fleet.drained_tenants and not request.held:
            reason = Reason.DRAINED
        rows.append(_row(view(request, None), "", position) | {"reason": reason})
    return rows


def _row(view: View, worker: str, position: int) -> dict[str, Any]:
    return {
        "request": view.request_id,
        "worker": worker,
        "state": view.status.name,
        "tenant": view.tenant,
        "priority": view.priority,
        "prompt": view.num_prompt,
        "output": view.num_output,
        "cached": view.num_cached,
        "computed": view.num_computed,
        "blocks": view.num_blocks,
        "host_blocks": view.num_host_blocks,
        "preemptions": view.preemptions,
        "position": position,  # how many go before it
        "reason": view.reason,
        "missing": view.num_missing,  # blocks
        "blocker": view.blocker,
    }


def _lines(groups: Iterable[list[dict[str, Any]]]) -> bytes:
    """The first of each group before the second of any."""
    rows = sorted((row for group in groups for row in group), key=lambda row: row["position"])
    return orjson.dumps(rows[:MAX_LISTED])
