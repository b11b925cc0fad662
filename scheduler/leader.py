"""What the active scheduler decides, from what it reads: messages in, writes out; pure.

`receive` takes in news, `act` says what is to be written next. Neither does I/O, and time is an
argument, so that a test or a simulation can drive a leader through any schedule. A takeover and a
lost worker go through the same methods as the daily business (`recovery.py`, `bury`).
"""

from collections.abc import Mapping, Sequence

from common.bus import EntryId, Log, News, Outcome, SetOwner, Write, WritePlan
from common.messages import FinishReason, Journal, RequestId, StepResult, Submit, WorkerId
from scheduler.asked import Asked
from scheduler.controls import Controls
from scheduler.core.request import Request
from scheduler.core.shares import Shares
from scheduler.deadlines import Deadlines
from scheduler.ends import Ends, finish
from scheduler.fleet import Fleet, Worker, in_order
from scheduler.intake import Intake
from scheduler.ledger import Account, Ledger
from scheduler.logs import Trimmer, farewell
from scheduler.placement import Placement
from scheduler.pool_controls import PoolControls
from scheduler.quarantine import Quarantine, charge
from scheduler.timeline import Timeline
from scheduler.totals import Totals

ARRIVAL_SECONDS = 1e-6  # between two requests at least, so that no two places are equal


class Leader:
    def __init__(
        self, fleet: Fleet, ledger: Ledger, max_queue: int, shares: Shares | None = None
    ) -> None:
        """`shares`: those that the fleet's cores have."""
        self.fleet = fleet
        self.ledger = ledger
        self.intake = Intake(ledger)
        self.quarantine = Quarantine(fleet)
        self.trimmer = Trimmer(fleet, ledger)
        self.timeline = Timeline()
        self.totals = Totals()
        self._writes: list[Write] = []
        self.ends = Ends(fleet, ledger, self.quarantine, self.timeline, self.totals, self._writes)
        self.placement = Placement(
            fleet, ledger, self.quarantine, self.ends, max_queue, self._writes
        )
        pool_controls = PoolControls(fleet, shares or Shares())
        self.controls = Controls(ledger, self.ends.end, self.ends.core_of, pool_controls)
        self.asked = Asked(ledger, self.controls, pool_controls)
        ledger.on_ended = self.controls.forget
        self._is_behind = False  # submissions were accepted that are not read yet
        self._deadlines = Deadlines()
        self._last_arrival = 0.0

    # --- In ---------------------------------------------------------------------------------

    def receive(self, news: News, now: float) -> None:
        for worker_id, results in news.results.items():
            for result in results:
                self.apply(worker_id, result, now)
        self._writes += self.intake.queue(news.submits)
        self.asked.add(news.controls)
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

    def watched(self) -> None:
        """The fleet is as `workers` says: whoever is unknown now is nobody."""
        self.placement.place_unassigned()
        self._obey(is_watched=True)

    def _obey(self, *, is_watched: bool = False) -> None:
        self._writes += self.asked.do(is_behind=self._is_behind, is_watched=is_watched)

    def adopt(self, entry: EntryId, submit: Submit, now: float) -> None:
        """Open a new submission, whose heads stand."""
        for account in self._open(entry, submit, [()] * submit.num_choices, now):
            self.totals.prompt_tokens += account.request.num_prompt
            self.timeline.came(account.request)
            self.placement.place(account)

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
                finish(account.request, journal.end.reason, journal.end.kept)
                self._writes += self.ledger.settle(account)
            else:
                self.placement.place(account)
                self._writes += self.ledger.flush(account)

    def _open(
        self, entry: EntryId, submit: Submit, answers: Sequence[Sequence[int]], now: float
    ) -> list[Account]:
        requests = [
            Request.from_submit(submit, choice, self._arrive(now), answer)
            for choice, answer in enumerate(answers)
        ]
        accounts = self.ledger.open(entry, submit, requests).accounts
        if submit.deadline_seconds is not None:
            for account in accounts:
                self._deadlines.add(now + submit.deadline_seconds, account)
        return accounts

    def _arrive(self, now: float) -> float:
        self._last_arrival = max(now, self._last_arrival + ARRIVAL_SECONDS)
        return self._last_arrival

    def apply(self, worker_id: WorkerId, result: StepResult, now: float) -> None:
        worker = self.fleet.workers[worker_id]
        if result.step != worker.cursor + 1:  # one between cannot be understood
            worker.trouble = worker.trouble or f"its log lacks step {worker.cursor + 1}"
            return
        try:
            advanced = worker.core.apply(result)
        except ValueError as error:  # a result of a step that was never planned
            worker.trouble = worker.trouble or f"its log cannot be followed: {error}"
            return
        worker.cursor = result.step
        self.totals.steps += 1
        self.timeline.applied(worker_id, result)
        self.totals.output_tokens += len(advanced)
        for request in advanced:
            account = self.ledger.accounts[request.id]
            self._writes += self.ledger.advanced(account, result.step, now)

    # --- Out --------------------------------------------------------------------------------

    def act(self, now: float) -> list[Write]:
        """Everything to write now, in the order in which a crash may cut it."""
        for account in self._deadlines.take_due(now):
            self.ends.end(account, FinishReason.DEADLINE)
        self.quarantine.isolate()
        for worker in self.fleet.workers.values():
            if worker.suspect:
                self._quarantine(worker, worker.suspect)
            elif worker.is_draining:
                self.placement.clear(worker)
        self._plan_all(now)
        for worker in self.fleet.workers.values():
            for request in worker.core.take_ended():
                worker.num_assigned -= 1
                self.ends.write(request)
        self._writes += self.ledger.flush_due(now)
        self._writes += self.trimmer.due(now)
        return self._take_writes()

    def end(
        self, account: Account, reason: FinishReason, kept: int | None = None, error: str = ""
    ) -> None:
        """Cancel, stop, deadline or error, in whatever state the request is."""
        self.ends.end(account, reason, kept, error)

    def _quarantine(self, worker: Worker, suspect: RequestId) -> None:
        others = [self.ledger.accounts[request_id] for request_id in worker.core.requests]
        self.quarantine.hold_back(worker, others)
        self.quarantine.review(worker, self.ledger.accounts.get(suspect))

    def _plan_all(self, now: float) -> None:
        for worker in self.fleet.workers.values():
            self._plan(worker, now)
        for worker in self.placement.balance(now):
            self._plan(worker, now)

    def _plan(self, worker: Worker, now: float) -> None:
        core = worker.core
        while core.can_plan():
            worker.seen = self._last_arrival
            plan = core.schedule()
            if plan is None:
                return
            for row in plan.admitted:
                account = self.ledger.accounts[row.request_id]
                if account.owner != worker.id:
                    account.owner = worker.id
                    self._writes.append(SetOwner(row.request_id, worker.id))
            self._writes.append(WritePlan(worker.id, plan))
            self._writes.append(self.timeline.step(now, worker, plan))
            preempted = self.totals.preempted
            for request_id, how in core.last.preempted:
                preempted[how] = preempted.get(how, 0) + 1
                self._writes += self.ledger.flush(self.ledger.accounts[request_id])

    def _take_writes(self) -> list[Write]:
        writes = self._writes.copy()
        self._writes.clear()  # others append to this very list
        return writes

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
            self.ends.write(request)
        for request in stranded:
            account = self.ledger.accounts[request.id]
            account.worker = None
            self._writes += self.ledger.flush(account)
            if died and request.id in at_work:
                self._writes.append(charge(account))
            if died and suspect == request.id and at_work == {suspect}:
                self.ends.condemn(account)
            else:
                self.placement.place(account)
        self._writes += self.controls.bury(worker_id)
        self._writes += farewell(worker_id)
        return self._take_writes()
