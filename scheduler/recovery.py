"""A new leader: from what stands in Redis to a scheduler that goes on where the last one was.

A takeover is the loss of all workers at once. Every log is closed first, so that nothing changes
while it is read; then journals and logs together say which tokens exist.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog

from common.bus import (
    Cursors,
    DropOwner,
    DropSubmit,
    DropSuspect,
    EntryId,
    ExpireJournal,
    Log,
    News,
    Outcome,
    SchedulerBus,
    Write,
    WriteHead,
)
from common.messages import Control, FinishReason, Journal, RequestId, Submit, WorkerId
from scheduler.intake import head_of
from scheduler.leader import Leader
from scheduler.logs import closing, farewell
from scheduler.writer import Writer

log = structlog.get_logger()

JOURNALS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Found:
    """What the last leader left."""

    journals: Mapping[RequestId, Journal]
    sampled: Mapping[RequestId, Mapping[int, int]]  # position -> token, of the owner's log
    errors: Mapping[RequestId, str]  # of rows that ended alone, in the owner's log
    deaths: Mapping[RequestId, int]

    def answer(self, request: RequestId) -> tuple[int, ...]:
        """The tokens that exist: the journal's, then the log's from there on."""
        tokens = list(self.journals[request].tokens)
        sampled = self.sampled.get(request, {})
        while (token := sampled.get(len(tokens))) is not None:
            tokens.append(token)
        return tuple(tokens)


async def recover(bus: SchedulerBus, writer: Writer, leader: Leader, cursors: Cursors) -> None:
    """Close all logs, read everything, complete the ends that were begun, open the rest."""
    owners = await bus.owners()
    workers = sorted({*await bus.workers(), *owners.values()})
    await writer.write([write for worker in workers for write in closing(worker)])
    logs = {worker: await bus.read_log(worker, 0) for worker in workers}
    news = await _read_all(bus, cursors)
    open_ids = [request for _, submit in news.submits for request in submit.request_ids()]
    loose = set(await bus.unexpired_journals()) | set(owners)
    found = Found(
        await _journals(bus, [*dict.fromkeys([*open_ids, *loose])]),
        _tokens(owners, logs),
        _errors(owners, logs),
        await bus.suspects(),
    )
    for entry, submit in news.submits:
        await _reopen(writer, leader, found, entry, submit)
    now = time.monotonic()
    leader.receive(News(controls=news.controls, garbage=news.garbage), now)
    await writer.write(leader.act(now))
    await writer.write(_tidy(loose - set(leader.ledger.accounts), leader))
    await writer.write([write for worker in workers for write in farewell(worker)])
    log.info("took over", submissions=len(leader.ledger.submissions), logs=len(workers))


async def _read_all(bus: SchedulerBus, cursors: Cursors) -> News:
    """`requests` and `control` from their beginnings; the cursors stand behind them then."""
    submits: list[tuple[EntryId, Submit]] = []
    controls: list[tuple[EntryId, Control]] = []
    garbage: list[tuple[str, EntryId]] = []
    while True:
        news = await bus.news(cursors, 0)
        if news.requests_cursor is None and news.control_cursor is None:
            return News(tuple(submits), tuple(controls), garbage=tuple(garbage))
        submits += news.submits
        controls += news.controls
        garbage += news.garbage
        cursors.advance(news)


async def _journals(bus: SchedulerBus, requests: list[RequestId]) -> dict[RequestId, Journal]:
    journals: dict[RequestId, Journal] = {}
    for first in range(0, len(requests), JOURNALS_AT_ONCE):
        part = requests[first : first + JOURNALS_AT_ONCE]
        journals |= zip(part, await bus.journals(part), strict=True)
    return journals


def _tokens(
    owners: Mapping[RequestId, WorkerId], logs: Mapping[WorkerId, Log]
) -> dict[RequestId, dict[int, int]]:
    """The log that `owners` names has a request's newest tokens; others' are in its journal."""
    tokens: dict[RequestId, dict[int, int]] = {}
    for worker, entries in logs.items():
        for result in entries.results:
            for token in result.sampled:
                if owners.get(token.request_id) == worker:
                    tokens.setdefault(token.request_id, {})[token.position] = token.token
    return tokens


def _errors(
    owners: Mapping[RequestId, WorkerId], logs: Mapping[WorkerId, Log]
) -> dict[RequestId, str]:
    """As an end mark does, an error ends a row for good, whoever leads when it is written."""
    return {
        request: error
        for worker, entries in logs.items()
        for result in entries.results
        for request, error in result.errors.items()
        if owners.get(request) == worker
    }


async def _reopen(
    writer: Writer, leader: Leader, found: Found, entry: EntryId, submit: Submit
) -> None:
    """One entry of `requests`: a copy goes, an end that was begun is completed, the rest runs.

    The entry is the truth about a request whose head cannot be read: it has all that a head has.
    """
    requests = submit.request_ids()
    heads = [found.journals[request].head for request in requests]
    is_copy = any(head and head.entry != entry for head in heads)
    if is_copy or not requests or submit.submission_id in leader.ledger.submissions:
        await writer.write([DropSubmit(entry)])
        return
    missing = [choice for choice, head in enumerate(heads) if head is None]
    outcomes = await writer.write([WriteHead(head_of(entry, submit, c)) for c in missing])
    for choice, outcome in zip(missing, outcomes, strict=True):
        if outcome is Outcome.REFUSED:  # a journal without a head that can be read: damaged
            log.error("a journal is damaged: its entry says the rest", request_id=requests[choice])
    leader.reopen(
        entry,
        submit,
        [found.answer(request) for request in requests],
        [found.journals[request] for request in requests],
        found.deaths,
        time.monotonic(),
    )
    for account in leader.ledger.targets(submit.submission_id, entry):
        if error := found.errors.get(account.request.id):
            leader.end(account, FinishReason.ERROR, error=error)


def _tidy(loose: Iterable[RequestId], leader: Leader) -> list[Write]:
    """Requests that no entry stands for any more: the end of their story was cut off."""
    writes: list[Write] = []
    for request in sorted(loose):
        writes += [DropOwner(request), DropSuspect(request)]
        writes.append(ExpireJournal(request, leader.ledger.journal_seconds))
    return writes
