"""Finds the request that kills workers: suspects run alone, one after the other; pure.

A request that took part in two deaths is a suspect. It gets a worker for itself until it has
passed the position at which it died: then it was another's fault. If the worker dies meanwhile,
it was this one's. Everybody else on that worker waits, for the time of a few steps.
"""

from common.bus import SetSuspect, Write
from common.messages import RequestId
from scheduler.core.request import Status
from scheduler.fleet import Fleet, Worker
from scheduler.ledger import Account

SUSPECT_DEATHS = 2


def is_suspect(account: Account) -> bool:
    return account.deaths >= SUSPECT_DEATHS and account.request.num_output <= account.died_at


def charge(account: Account) -> Write:
    """It took part in a death."""
    account.deaths += 1
    account.died_at = account.request.num_output
    return SetSuspect(account.request.id, account.deaths)


class Quarantine:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.line: dict[RequestId, Account] = {}  # suspects that wait for a worker, by request
        self._held: list[Account] = []  # who waits for the suspect that runs

    def isolate(self) -> None:
        """Give the next suspect a worker for itself; one at a time, so that others serve."""
        if any(worker.suspect for worker in self.fleet.workers.values()):
            return
        for account in self.line.values():
            request = account.request
            is_free = not request.held and request.tenant not in self.fleet.drained_tenants
            if is_free and (worker := self.fleet.choose(request)):
                del self.line[request.id]
                worker.suspect = request.id
                account.worker = self.fleet.give(request, worker)
                return

    def holds(self, request: RequestId) -> bool:
        """Nobody but the suspect makes it wait."""
        return any(a.request.id == request and not a.is_held for a in self._held)

    def hold_back(self, worker: Worker, others: list[Account]) -> None:
        """Whoever else has work on the worker waits; one that is held anyway is not ours."""
        for account in others:
            request = account.request
            is_over = request.status is Status.FINISHED
            if request.id != worker.suspect and not request.held and not is_over:
                worker.core.hold(request.id)
                self._held.append(account)

    def review(self, worker: Worker, suspect: Account | None) -> None:
        """Let the others go on when the suspect has passed, has ended, or is passed over."""
        if (
            suspect is None
            or suspect.is_done
            or not is_suspect(suspect)
            or worker.core.waiting.aside(suspect.request)
        ):
            self.lift(worker)

    def lift(self, worker: Worker) -> None:
        """Nobody is isolated on this worker any more, if somebody was."""
        if worker.suspect is None:
            return
        worker.suspect = None
        held, self._held = self._held, []
        for account in held:
            if not account.is_held:
                worker.core.release(account.request.id)
