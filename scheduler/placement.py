"""Which worker gets a request, and who goes from one worker's line to another's; pure.

A request that moves has no part on the worker that it leaves. Its journal catches up first: the
log that `owners` names next knows nothing of the tokens that the old one has.
"""

from itertools import islice

from common.bus import Write
from common.messages import FinishReason, RequestId
from scheduler.core.request import Request
from scheduler.ends import Ends
from scheduler.fleet import Fleet, Worker
from scheduler.ledger import Account, Ledger
from scheduler.quarantine import Quarantine, is_suspect

MOVE_SECONDS = 1.0  # who was moved stays for so long, or two workers might play ball with it
SCANNED = 64  # of a line that are looked at for an idle worker


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
        self._moved: dict[RequestId, float] = {}  # when, oldest first

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
            if account := self._take_back(request, worker):
                self.place(account)

    def balance(self, now: float) -> list[Worker]:
        """Who has seats and no line takes from the longest line. Returns who got something."""
        workers = self.fleet.hiring()
        idle = [worker for worker in workers if worker.is_idle]
        if not idle or len(idle) == len(workers):
            return []
        self._forget_moves(now)
        return [worker for worker in idle if self._help(worker, workers, now)]

    def _help(self, worker: Worker, workers: list[Worker], now: float) -> bool:
        lines = [other for other in workers if other is not worker and other.has_line]
        lines.sort(key=lambda other: -other.core.waiting.num_ready)
        return any(self._steal(worker, other, now) for other in lines)

    def _steal(self, worker: Worker, other: Worker, now: float) -> bool:
        """Up to half of the line, as far as it can be admitted at once."""
        num_ready = other.core.waiting.num_ready
        most = min(worker.num_seats, (num_ready + 1) // 2)
        room, taken = worker.num_spare_blocks, 0
        for request in list(islice(other.core.waiting, min(num_ready, SCANNED))):
            needed = worker.blocks_to_start(request)
            if needed > room or not self._may_move(request, worker, other):
                continue
            if account := self._take_back(request, other):
                room -= needed
                taken += 1
                account.worker = self.fleet.give(request, worker)
                self._moved[request.id] = now
                self.ends.totals.moved += 1
            if taken == most:
                break
        return taken > 0

    def _may_move(self, request: Request, worker: Worker, other: Worker) -> bool:
        return (
            request.arrival <= other.seen  # the other could not start it
            and request.id not in self._moved
            and not worker.core.never_fits(request)
            and worker.core.pool.has(worker.blocks_to_start(request))
        )

    def _take_back(self, request: Request, worker: Worker) -> Account | None:
        if not self.fleet.take_back(request, worker):
            return None
        account = self.ledger.accounts[request.id]
        self._writes += self.ledger.flush(account)
        account.worker = None
        return account

    def _forget_moves(self, now: float) -> None:
        while self._moved:
            request_id, then = next(iter(self._moved.items()))
            if then + MOVE_SECONDS > now:
                return
            del self._moved[request_id]
