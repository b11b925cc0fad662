"""How the streams of a worker shrink while it lives, and end when it is lost; pure."""

from common.bus import (
    CloseLog,
    CloseSteps,
    DropWorker,
    ExpireWorker,
    TrimLog,
    TrimSteps,
    Write,
)
from common.messages import WorkerId
from scheduler.fleet import Fleet
from scheduler.ledger import Ledger

TRIM_DELAY_SECONDS = 2.0  # a gateway that repairs may still be reading what is in journals now
TRIM_EVERY_SECONDS = 1.0
GONE_WORKER_SECONDS = 60.0  # how long the log of a lost worker can still be read


class Trimmer:
    """Trims what has been in journals for a while."""

    def __init__(self, fleet: Fleet, ledger: Ledger) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._next = 0.0

    def due(self, now: float) -> list[Write]:
        if now < self._next:
            return []
        self._next = now + TRIM_EVERY_SECONDS
        writes: list[Write] = []
        for worker in self._fleet.workers.values():
            while worker.trims and worker.trims[0][0] + TRIM_DELAY_SECONDS <= now:
                _, before = worker.trims.pop(0)
                writes += [TrimLog(worker.id, before), TrimSteps(worker.id, before)]
            before = self._ledger.first_unjournaled(worker.id) or worker.cursor + 1
            if before > 1 and (not worker.trims or worker.trims[-1][1] < before):
                worker.trims.append((now, before))
        return writes


def closing(worker_id: WorkerId) -> list[Write]:
    return [CloseLog(worker_id), CloseSteps(worker_id)]


def farewell(worker_id: WorkerId) -> list[Write]:
    """The keys of a worker whose log is closed and in journals.

    They expire once more after the field is gone: a worker that was only just starting may have
    opened its log in between.
    """
    expire = [ExpireWorker(worker_id, GONE_WORKER_SECONDS, log) for log in (True, False)]
    return [*expire, DropWorker(worker_id), *expire]
