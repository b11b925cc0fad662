"""Which worker gets a request, and who goes from one worker's line to another's; pure.

A request that moves has no part on the worker that it leaves. Its journal catches up first: the
log that `owners` names next knows nothing of the tokens that the old one has.
"""

from common.bus import Write
from common.messages import FinishReason
from scheduler.balancing import Balancing
from scheduler.core.request import Request
from scheduler.ends import Ends
from scheduler.fleet import Fleet, Worker
from scheduler.ledger import Account, Ledger
from scheduler.quarantine import Quarantine, is_suspect


class Placement:
    def __init__(
        self,
        fleet: Fleet,
        ledger: Ledger,
        quarantine: Quarantine,
        ends: Ends,
        max_open: int,
        writes: list[Write],
    ) -> None:
        """`writes`: the leader's, that go out next."""
        self.fleet = fleet
        self.ledger = ledger
        self.quarantine = quarantine
        self.ends = ends
        self.max_open = max_open
        self._writes = writes
        self._balancing = Balancing(fleet, self._take_back)

    def place(self, account: Account) -> None:
        """Find the request a worker, or end it if none can ever hold it."""
        request, ends = account.request, self.ends
        if own_end := request.own_end:  # it came with its last token
            ends.end_unplaced(account, own_end)
        elif reason := self.fleet.never_fits(request):
            ends.end_unplaced(account, FinishReason.REFUSED, error=reason)
        elif len(self.ledger.accounts) > self.max_open:
            ends.end_unplaced(account, FinishReason.OVERLOADED, error="try again later")
        elif is_suspect(account):
            self.quarantine.line[request.id] = account
        else:
            account.worker = self.fleet.assign(request)

    def place_unassigned(self) -> None:
        if self.fleet.unassigned and self.fleet.hiring():
            for request in self.fleet.take_unassigned():
                self.place(self.ledger.accounts[request.id])

    def clear(self, worker: Worker) -> None:
        """What waits on a worker that is draining goes elsewhere; what runs ends there."""
        for request in list(worker.core.waiting):
            if self._take_back(request, worker):
                self.place(self.ledger.accounts[request.id])

    def balance(self, now: float) -> list[Worker]:
        """Idle workers take from the lines of others. Returns who got something."""
        moves = self._balancing.balance(now)
        for request, worker in moves:
            self.ledger.accounts[request.id].worker = worker.id
        self.ends.totals.moved += len(moves)
        return list(dict.fromkeys(worker for _, worker in moves))

    def _take_back(self, request: Request, worker: Worker) -> bool:
        if not self.fleet.take_back(request, worker):
            return False
        account = self.ledger.accounts[request.id]
        self._writes += self.ledger.flush(account)
        account.worker = None
        return True
