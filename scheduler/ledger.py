"""What each open submission is owed, and how much of it is written already; pure.

An account follows one request from its head to its end. Its answer is written to its journal in
batches, its end in the order that a crash may cut anywhere (`Ledger.end`).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from common.bus import (
    DropOwner,
    DropSubmit,
    DropSuspect,
    EntryId,
    ExpireJournal,
    Write,
    WriteEnd,
    WriteTokens,
)
from common.messages import Ended, RequestId, SubmissionId, Submit, WorkerId
from scheduler.core.request import Request
from scheduler.targets import tenant_of

FLUSH_TOKENS = 32  # a journal is at most so many tokens behind,
FLUSH_SECONDS = 1.0  # or so long, while its request runs


@dataclass(slots=True, eq=False)
class Account:
    request: Request
    submission: "Submission"
    journaled: int = 0  # output tokens in the journal
    head_start: int = 0  # tokens by which the first entry comes early: see `Ledger.advanced`
    log_step: int | None = None  # step whose result brought the oldest token not in the journal
    since: float = 0.0  # when it came
    owner: WorkerId | None = None  # as `owners` says
    worker: WorkerId | None = None  # whose core has it now
    deaths: int = 0  # of workers that computed it at the time
    died_at: int = -1  # output tokens that it had at the last of them
    controls: list[EntryId] = field(default_factory=list)  # that stay until its end is written
    is_held: bool = False  # by a control; a suspect holds others back too, for a while
    is_done: bool = False  # its end is written


@dataclass(slots=True, eq=False)
class Submission:
    entry: EntryId
    submit: Submit
    accounts: list[Account] = field(default_factory=list)
    controls: list[EntryId] = field(default_factory=list)  # that stay until all its ends are
    num_open: int = 0  # choices whose end is not written


class Ledger:
    def __init__(self, journal_seconds: float) -> None:
        self.journal_seconds = journal_seconds
        self.on_ended: Callable[[list[EntryId]], list[Write]] = lambda entries: []
        self.submissions: dict[SubmissionId, Submission] = {}
        self.accounts: dict[RequestId, Account] = {}
        self._unflushed: OrderedDict[RequestId, Account] = OrderedDict()  # oldest first

    def open(self, entry: EntryId, submit: Submit, requests: Iterable[Request]) -> Submission:
        submission = Submission(entry, submit)
        for request in requests:
            account = Account(request, submission, head_start=len(self.accounts) % FLUSH_TOKENS)
            submission.accounts.append(account)
            self.accounts[request.id] = account
        submission.num_open = len(submission.accounts)
        self.submissions[submit.submission_id] = submission
        return submission

    def targets(self, target: str, entry: EntryId) -> list[Account]:
        """The open accounts that a control entry means: a request, a submission's, a tenant's.

        Of a tenant only what came before the entry, or the next leader would do it to others too.
        """
        if tenant := tenant_of(target):
            return [
                account
                for submission in self.submissions.values()
                if submission.submit.tenant == tenant and _is_before(submission.entry, entry)
                for account in submission.accounts
                if not account.is_done
            ]
        if submission := self.submissions.get(SubmissionId(target)):
            return [account for account in submission.accounts if not account.is_done]
        account = self.accounts.get(RequestId(target))
        return [account] if account and not account.is_done else []

    def advanced(self, account: Account, step: int, now: float) -> list[Write]:
        """Note that the step brought tokens; the journal's entry if enough have gathered.

        Requests that began together must not all be written in one step: that would hold it up.
        """
        if account.log_step is None:
            account.log_step, account.since = step, now
            self._unflushed[account.request.id] = account
        gathered = account.request.num_output - account.journaled
        if gathered >= FLUSH_TOKENS - (0 if account.journaled else account.head_start):
            return self.flush(account)
        return []

    def flush(self, account: Account) -> list[Write]:
        """The journal catches up, unless the request has ended: then its end says the rest.

        A mark by which a row ended stands in the log alone; were its token written here and the
        log trimmed, a new leader could not know of it.
        """
        if account.request.finish_reason is not None:
            return []
        return self._catch_up(account)

    def flush_due(self, now: float) -> list[Write]:
        """Journals that are a second behind."""
        writes: list[Write] = []
        for account in self._due(now):
            writes += self.flush(account)
        return writes

    def first_unjournaled(self, worker: WorkerId) -> int | None:
        """The oldest step of the worker's log that some journal or end still lacks."""
        steps = (
            account.log_step
            for account in self._unflushed.values()
            if account.worker == worker and account.log_step is not None
        )
        return min(steps, default=None)

    def end(self, account: Account) -> list[Write]:
        """The story of an end, in the order in which a crash may cut it."""
        request = account.request
        assert request.finish_reason is not None, request
        assert not account.is_done, request
        assert request.kept is not None, request
        writes = self._catch_up(account)
        writes.append(
            WriteEnd(
                account.journaled,
                Ended(
                    request.id,
                    request.kept,
                    request.finish_reason,
                    request.error,
                    request.num_cached,
                ),
                request.gateways,
            )
        )
        return writes + self.settle(account)

    def settle(self, account: Account) -> list[Write]:
        """What follows an end that stands in the journal."""
        submission, request = account.submission, account.request
        account.is_done = True
        submission.num_open -= 1
        self._unflushed.pop(request.id, None)
        writes: list[Write] = [DropOwner(request.id), DropSuspect(request.id)]
        writes += self.on_ended(account.controls)
        if not submission.num_open:
            writes += self._close(submission)
        return writes

    def _close(self, submission: Submission) -> Iterator[Write]:
        """All choices have ended: nothing of the submission is left but journals that expire."""
        yield DropSubmit(submission.entry)
        yield from self.on_ended(submission.controls)
        del self.submissions[submission.submit.submission_id]
        for account in submission.accounts:
            del self.accounts[account.request.id]
            yield ExpireJournal(account.request.id, self.journal_seconds)

    def _catch_up(self, account: Account) -> list[Write]:
        request = account.request
        self._unflushed.pop(request.id, None)
        account.log_step = None
        total = request.num_output
        if total == account.journaled:
            return []
        first = request.num_prompt + account.journaled
        account.journaled = total
        return [WriteTokens(request.id, total, tuple(request.tokens[first:]))]

    def _due(self, now: float) -> list[Account]:
        due = []
        for account in self._unflushed.values():
            if account.since + FLUSH_SECONDS > now:
                break
            due.append(account)
        return due


def _is_before(first: EntryId, second: EntryId) -> bool:
    """Of two streams of one server, whose ids begin with its milliseconds."""
    return int(first.partition("-")[0]) <= int(second.partition("-")[0])
