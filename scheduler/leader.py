"""What the active scheduler decides, from what it reads: messages in, writes out; pure.

`receive` takes in news, `act` says what is to be written next. Neither does I/O, and time is an
argument, so that a test or a simulation can drive a leader through any schedule. A takeover and a
lost worker go through the same methods as the daily business (`recovery.py`, `bury`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from common.bus import (
    AddDead,
    AddTimeline,
    EntryId,
    Log,
    News,
    Outcome,
    SetOwner,
    SetSuspect,
    Write,
    WritePlan,
)
from common.messages import (
    Control,
    FinishReason,
    Journal,
    RequestId,
    StepPlan,
    StepResult,
    Submit,
    WorkerId,
)
from scheduler.controls import Controls
from scheduler.core.request import Request, Status
from scheduler.core.scheduler import Scheduler
from scheduler.deadlines import Deadlines
from scheduler.fleet import Fleet, Worker, in_order
from scheduler.intake import Intake
from scheduler.ledger import Account, Ledger
from scheduler.logs import Trimmer, farewell
from scheduler.quarantine import Quarantine, is_suspect
from scheduler.status import dead_entry, timeline_entry


@dataclass(slots=True)
class Totals:
    """What this leader has done since it took the lease."""

    steps: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    preemptions: int = 0
    ended: dict[FinishReason, int] = field(default_factory=dict)


class Leader:
    def __init__(self, fleet: Fleet, ledger: Ledger, max_queue: int) -> None:
        self.fleet = fleet
        self.ledger = ledger
        self.controls = Controls(ledger, self.end, self._core_of)
        ledger.on_dropped = self.controls.forget
        self.intake = Intake(ledger)
        self.quarantine = Quarantine(fleet)
        self.trimmer = Trimmer(fleet, ledger)
        self.max_queue = max_queue
        self.totals = Totals()
        self._asked: list[tuple[EntryId, Control]] = []  # not done yet
        self._is_behind = False  # submissions were accepted that are not read yet
        self._deadlines = Deadlines()
        self._writes: list[Write] = []
        self._arrivals = 0
        self._timeline = 0
        self._dead = 0

    # --- In ---------------------------------------------------------------------------------

    def receive(self, news: News, now: float) -> None:
        for worker_id, results in news.results.items():
            for result in results:
                self.apply(worker_id, result, now)
        self._writes += self.intake.queue(news.submits)
        self._asked += news.controls
        self._is_behind = news.more_requests
        if not self.intake:
            self._obey()
        for stream, entry in news.garbage:
            self._writes += self.controls.drop_garbage(stream, entry)
        self._distrust(news)

    def _distrust(self, news: News) -> None:
        """A worker whose log says something that it should not is given up."""
        for worker in self.fleet.workers.values():
            if worker.id in news.closed:
                worker.trouble = worker.trouble or "its log is closed"
            elif any(stream == f"results:{worker.id}" for stream, _ in news.garbage):
                worker.trouble = worker.trouble or "its log cannot be understood"

    def heads(self) -> list[Write]:
        """The journals' heads of the submissions that came; `joined` takes the answers."""
        return self.intake.heads()

    def joined(self, outcomes: Sequence[Outcome], now: float) -> None:
        opened, writes = self.intake.joined(outcomes)
        self._writes += writes
        for entry, submit in opened:
            self.adopt(entry, submit, now)
        self._obey()

    def _obey(self) -> None:
        """Do what was asked for, of requests that are not open yet only once they are.

        What a control entry means was accepted before it: unknown when all of that is open, it
        has ended, or never was.
        """
        asked, self._asked = self._asked, []
        for entry, control in asked:
            if self._is_behind and not self.ledger.targets(control.target):
                self._asked.append((entry, control))
            else:
                self._writes += self.controls.take(entry, control)

    def adopt(self, entry: EntryId, submit: Submit, now: float) -> None:
        """Open a new submission, whose heads stand."""
        for account in self._open(entry, submit, [()] * submit.num_choices, now):
            self.totals.prompt_tokens += account.request.num_prompt
            self.place(account)

    def reopen(
        self,
        entry: EntryId,
        submit: Submit,
        answers: Sequence[Sequence[int]],
        journals: Sequence[Journal],
        deaths: Mapping[RequestId, int],
        now: float,
    ) -> None:
        """Open a submission of a former leader: `answers` are the tokens that its choices have."""
        accounts = self._open(entry, submit, answers, now)
        for account, journal in zip(accounts, journals, strict=True):
            account.journaled = len(journal.tokens)
            account.deaths = deaths.get(account.request.id, 0)
            account.died_at = account.request.num_output
        for account, journal in zip(accounts, journals, strict=True):
            if journal.end is not None:
                self._finish(account.request, journal.end.reason, journal.end.kept)
                self._writes += self.ledger.settle(account)
            else:
                self.place(account)
                self._writes += self.ledger.flush(account)

    def _open(
        self, entry: EntryId, submit: Submit, answers: Sequence[Sequence[int]], now: float
    ) -> list[Account]:
        requests = [
            Request.from_submit(submit, choice, self._arrive(), answer)
            for choice, answer in enumerate(answers)
        ]
        accounts = self.ledger.open(entry, submit, requests).accounts
        if submit.deadline_seconds is not None:
            for account in accounts:
                self._deadlines.add(now + submit.deadline_seconds, account)
        return accounts

    def apply(self, worker_id: WorkerId, result: StepResult, now: float) -> None:
        worker = self.fleet.workers[worker_id]
        if result.step != worker.cursor + 1:  # one between cannot be understood
            worker.trouble = worker.trouble or f"its log lacks step {worker.cursor + 1}"
            return
        try:
            applied = worker.core.apply(result)
        except ValueError as error:  # a result of a step that was never planned
            worker.trouble = worker.trouble or f"its log cannot be followed: {error}"
            return
        worker.cursor = result.step
        self.totals.steps += 1
        for request, tokens in applied.advanced:
            account = self.ledger.accounts[request.id]
            self.totals.output_tokens += len(tokens)
            self._writes += self.ledger.advanced(account, result.step, now)

    def expire(self, now: float) -> None:
        """End what has run past its deadline."""
        for account in self._deadlines.take_due(now):
            self.end(account, FinishReason.DEADLINE)

    # --- Out --------------------------------------------------------------------------------

    def act(self, now: float) -> list[Write]:
        """Everything to write now, in the order in which a crash may cut it."""
        self.expire(now)
        self.quarantine.isolate()
        for worker in self.fleet.workers.values():
            if worker.suspect:
                self._quarantine(worker, worker.suspect)
            self._plan(worker)
        for worker in self.fleet.workers.values():
            for request in worker.core.take_ended():
                worker.num_assigned -= 1
                self._end(request)
        self._writes += self.ledger.flush_due(now)
        self._writes += self.trimmer.due(now)
        writes, self._writes = self._writes, []
        return writes

    def place(self, account: Account) -> None:
        """Find the request a worker, or end it if none can ever hold it."""
        request = account.request
        if own_end := request.own_end:  # it came with its last token
            self._end_unplaced(account, own_end)
        elif reason := self.fleet.never_fits(request):
            self._end_unplaced(account, FinishReason.REFUSED, error=reason)
        elif len(self.ledger.accounts) > self.max_queue:
            self._end_unplaced(account, FinishReason.OVERLOADED, error="try again later")
        elif is_suspect(account):
            self.quarantine.line[request.id] = account
        else:
            account.worker = self.fleet.assign(request)

    def place_unassigned(self) -> None:
        if self.fleet.unassigned and self.fleet.at_work():
            for request in self.fleet.take_unassigned():
                self.place(self.ledger.accounts[request.id])

    # --- Workers ----------------------------------------------------------------------------

    def bury(self, worker_id: WorkerId, log: Log, died: bool, now: float) -> list[Write]:
        """A worker is lost, its log closed: what it did counts, the rest moves elsewhere."""
        worker = self.fleet.workers[worker_id]
        for result in log.results:
            self.apply(worker_id, result, now)
        suspect = worker.suspect
        self.quarantine.lift(worker)
        at_work = {request.id for request in worker.core.requests.values() if request.in_flight}
        stranded = in_order(self.fleet.bury(worker_id))
        for request in worker.core.take_ended():
            self._end(request)
        for request in stranded:
            account = self.ledger.accounts[request.id]
            account.worker = None
            self._writes += self.ledger.flush(account)
            if died and request.id in at_work:
                self._charge(account)
            if died and suspect == request.id and at_work == {suspect}:
                self._condemn(account)
            else:
                self.place(account)
        self._writes += farewell(worker_id)
        writes, self._writes = self._writes, []
        return writes

    def _charge(self, account: Account) -> None:
        """It took part in a death."""
        account.deaths += 1
        account.died_at = account.request.num_output
        self._writes.append(SetSuspect(account.request.id, account.deaths))

    def _condemn(self, account: Account) -> None:
        """It was alone when its worker died, and took part in two deaths before."""
        request = account.request
        self._dead += 1
        self._writes.append(AddDead(self._dead, dead_entry(account)))
        error = f"the request ended {account.deaths} workers that computed it"
        self._end_unplaced(account, FinishReason.ERROR, kept=request.num_output, error=error)

    def _quarantine(self, worker: Worker, suspect: RequestId) -> None:
        others = [self.ledger.accounts[request_id] for request_id in worker.core.requests]
        self.quarantine.hold_back(worker, others)
        self.quarantine.review(worker, self.ledger.accounts.get(suspect))

    def _plan(self, worker: Worker) -> None:
        while worker.core.can_plan():
            plan = worker.core.schedule()
            if plan is None:
                return
            for row in plan.admitted:
                account = self.ledger.accounts[row.request_id]
                if account.owner != worker.id:
                    account.owner = worker.id
                    self._writes.append(SetOwner(row.request_id, worker.id))
            self._writes.append(WritePlan(worker.id, plan))
            self._note(worker, plan)
            for request_id in worker.core.last.preempted:
                self.totals.preemptions += 1
                self._writes += self.ledger.flush(self.ledger.accounts[request_id])

    def _note(self, worker: Worker, plan: StepPlan) -> None:
        self._timeline += 1
        self._writes.append(AddTimeline(self._timeline, timeline_entry(worker, plan)))

    # --- Ends -------------------------------------------------------------------------------

    def _end(self, request: Request) -> None:
        account = self.ledger.accounts[request.id]
        assert request.finish_reason is not None, request
        ended = self.totals.ended
        ended[request.finish_reason] = ended.get(request.finish_reason, 0) + 1
        self._writes += self.ledger.end(account)

    def end(
        self, account: Account, reason: FinishReason, kept: int | None = None, error: str = ""
    ) -> None:
        """Cancel, stop, deadline or error, in whatever state the request is."""
        if core := self._core_of(account):
            # Written once no step names it.
            core.end(account.request.id, reason, kept=kept, error=error)
        else:
            self._end_unplaced(account, reason, kept=kept, error=error)

    def _end_unplaced(
        self, account: Account, reason: FinishReason, *, kept: int | None = None, error: str = ""
    ) -> None:
        request = account.request
        self.fleet.unassigned.pop(request.id, None)
        self.quarantine.line.pop(request.id, None)
        self._finish(request, reason, kept, error)
        self._end(request)

    def _finish(
        self, request: Request, reason: FinishReason, kept: int | None, error: str = ""
    ) -> None:
        """What a core does to a request that it has."""
        request.move_to(Status.FINISHED)
        request.finish_reason, request.error = reason, error
        request.kept = request.num_output if kept is None else min(kept, request.num_output)

    def _core_of(self, account: Account) -> Scheduler | None:
        worker = self.fleet.workers.get(account.worker) if account.worker else None
        return worker.core if worker else None

    def _arrive(self) -> int:
        self._arrivals += 1
        return self._arrivals
