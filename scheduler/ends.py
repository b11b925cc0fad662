"""How requests end, in whatever state they are; pure."""

from common.bus import AddDead, Write
from common.messages import FinishReason
from scheduler.core.request import Request, Status
from scheduler.core.scheduler import Scheduler
from scheduler.fleet import Fleet
from scheduler.ledger import Account, Ledger
from scheduler.quarantine import Quarantine
from scheduler.status import dead_entry
from scheduler.timeline import Timeline
from scheduler.totals import Totals


class Ends:
    def __init__(
        self,
        fleet: Fleet,
        ledger: Ledger,
        quarantine: Quarantine,
        timeline: Timeline,
        totals: Totals,
        writes: list[Write],
    ) -> None:
        """`writes`: the leader's, that go out next."""
        self.fleet = fleet
        self.ledger = ledger
        self.quarantine = quarantine
        self.timeline = timeline
        self.totals = totals
        self._writes = writes
        self._dead = 0

    def core_of(self, account: Account) -> Scheduler | None:
        worker = self.fleet.workers.get(account.worker) if account.worker else None
        return worker.core if worker else None

    def end(
        self, account: Account, reason: FinishReason, kept: int | None = None, error: str = ""
    ) -> None:
        """Cancel, stop, deadline or error, in whatever state the request is."""
        if core := self.core_of(account):
            # Written once no step names it.
            core.end(account.request.id, reason, kept=kept, error=error)
        else:
            self.end_unplaced(account, reason, kept=kept, error=error)

    def end_unplaced(
        self, account: Account, reason: FinishReason, *, kept: int | None = None, error: str = ""
    ) -> None:
        """End one that no worker has."""
        request = account.request
        self.fleet.unassigned.pop(request.id, None)
        self.quarantine.line.pop(request.id, None)
        finish(request, reason, kept, error)
        self.write(request)

    def condemn(self, account: Account) -> None:
        """It was alone when its worker died, and took part in two deaths before."""
        request = account.request
        self._dead += 1
        self._writes.append(AddDead(self._dead, dead_entry(account)))
        error = f"the request ended {account.deaths} workers that computed it"
        self.end_unplaced(account, FinishReason.ERROR, kept=request.num_output, error=error)

    def write(self, request: Request) -> None:
        """The story of its end: it has finished, and no step names it."""
        account = self.ledger.accounts[request.id]
        assert request.finish_reason is not None, request
        ended = self.totals.ended
        ended[request.finish_reason] = ended.get(request.finish_reason, 0) + 1
        self.totals.cached_tokens += request.num_cached
        self.timeline.ended(request)
        self._writes += self.ledger.end(account)


def finish(request: Request, reason: FinishReason, kept: int | None, error: str = "") -> None:
    """What a core does to a request that it has."""
    request.move_to(Status.FINISHED)
    request.finish_reason, request.error = reason, error
    request.kept = request.num_output if kept is None else min(kept, request.num_output)
