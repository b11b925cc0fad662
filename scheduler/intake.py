"""Submissions that have come and are not open yet: copies go, the rest get their heads; pure."""

from collections.abc import Sequence

from common.bus import DropSubmit, EntryId, ExpireJournal, Outcome, Write, WriteHead
from common.messages import JournalHead, Submit
from scheduler.ledger import Ledger

Arrival = tuple[EntryId, Submit]


class Intake:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._joining: list[Arrival] = []  # their heads are not written yet

    def __bool__(self) -> bool:
        return bool(self._joining)

    def queue(self, submits: Sequence[Arrival]) -> list[Write]:
        known = self._ledger.submissions
        joining = {submit.submission_id for _, submit in self._joining}
        writes: list[Write] = []
        for entry, submit in submits:
            is_copy = submit.submission_id in joining or submit.submission_id in known
            if is_copy or not submit.num_choices:  # of nothing, there is nothing to end
                writes.append(DropSubmit(entry))
            else:
                joining.add(submit.submission_id)
                self._joining.append((entry, submit))
        return writes

    def heads(self) -> list[Write]:
        """The journals' heads of all that joins; `joined` takes the answers."""
        return [
            WriteHead(head_of(entry, submit, choice))
            for entry, submit in self._joining
            for choice in range(submit.num_choices)
        ]

    def joined(self, outcomes: Sequence[Outcome]) -> tuple[list[Arrival], list[Write]]:
        """Who may be opened; a head that stood there already tells a late copy of what ended."""
        answers = iter(outcomes)
        opened: list[Arrival] = []
        writes: list[Write] = []
        for entry, submit in self._joining:
            choices = [next(answers) for _ in range(submit.num_choices)]
            if Outcome.REFUSED in choices:
                writes += self._refuse_copy(entry, submit, choices)
            else:
                opened.append((entry, submit))
        self._joining = []
        return opened, writes

    def _refuse_copy(
        self, entry: EntryId, submit: Submit, outcomes: Sequence[Outcome]
    ) -> list[Write]:
        """Heads that it has got where a former journal was gone already must go too."""
        writes: list[Write] = [DropSubmit(entry)]
        for request, outcome in zip(submit.request_ids(), outcomes, strict=True):
            if outcome is Outcome.OK:
                writes.append(ExpireJournal(request, self._ledger.journal_seconds))
        return writes


def head_of(entry: EntryId, submit: Submit, choice: int) -> JournalHead:
    return JournalHead(
        request_id=submit.request_ids()[choice],
        entry=entry,
        num_prompt=len(submit.prompts[choice // submit.n]),
        tenant=submit.tenant,
        digest=submit.digest,
        frame=submit.frame,
    )
