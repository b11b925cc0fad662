"""What a gateway missed, read back: owner, its log, journal, owner again, merged by position.

The order of the reads is what makes it right. Tokens move from a log into the journal and never
back, so whatever had left the log before it was read stands in a journal read after it. A request
whose owner changed in between may have tokens in a log that was not read: it is read again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from common.bus import GatewayBus, Log
from common.messages import Ended, FinishReason, Journal, RequestId, WorkerId

MAX_PARALLEL = 8  # reads at one time: each holds a connection

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Found:
    """All that exists of one answer from a position on."""

    tokens: tuple[int, ...]
    end: Ended | None = None
    has_journal: bool = True  # False: no scheduler has read the request yet, or it has expired


def merge(start: int, logged: Mapping[int, int], journal: Journal) -> Found | None:
    """The answer's tokens at positions >= `start`; None if what was read has a hole.

    `logged` (position to token) was read before `journal`. A journal with an end has everything,
    unless somebody else has written into it.
    """
    if journal.end is not None:
        return Found(journal.tokens[start : journal.end.kept], _end_of(journal, start))
    tokens = list(journal.tokens[start:])
    while (token := logged.get(start + len(tokens))) is not None:
        tokens.append(token)
    if max(logged, default=-1) >= start + len(tokens):
        return None
    stands = journal.head is not None or bool(journal.tokens)  # a head may be damaged
    return Found(tuple(tokens), has_journal=stands)


def _end_of(journal: Journal, start: int) -> Ended | None:
    """Where tokens are missing that nobody can bring, the answer ends with an error."""
    end, num_known = journal.end, max(start, len(journal.tokens))
    if end is None or num_known >= end.kept:
        return end
    return replace(end, reason=FinishReason.ERROR, kept=num_known, error="its journal is damaged")


async def repair(bus: GatewayBus, starts: Mapping[RequestId, int]) -> dict[RequestId, Found | None]:
    """What exists of each request from its position in `starts` on.

    None: the reads do not fit together, since something moved meanwhile; ask again. A log is read
    once, however many of the requests are in it. A request that nobody owns is in no log: its
    journal alone is the truth, and the second look at its owner is spared.
    """
    owners = await _each(bus.owner, starts)
    workers = {worker for worker in owners.values() if worker is not None}
    logs = await _each(lambda worker: bus.read_log(worker, after=0), workers)
    logged = _positions(logs, starts)
    journals = await _each(bus.journal, starts)
    owned = [request for request, worker in owners.items() if worker is not None]
    owners_after = await _each(bus.owner, owned)

    found: dict[RequestId, Found | None] = {}
    for request, start in starts.items():
        moved = owners[request] is not None and owners_after[request] != owners[request]
        if moved and journals[request].end is None:
            found[request] = None
        else:
            found[request] = merge(start, logged[request], journals[request])
    return found


def _positions(
    logs: Mapping[WorkerId, Log], wanted: Iterable[RequestId]
) -> dict[RequestId, dict[int, int]]:
    positions: dict[RequestId, dict[int, int]] = {request: {} for request in wanted}
    for log in logs.values():
        for result in log.results:
            for sampled in result.sampled:
                if (of_request := positions.get(sampled.request_id)) is not None:
                    of_request[sampled.position] = sampled.token
    return positions


async def _each(read: Callable[[K], Awaitable[V]], keys: Iterable[K]) -> dict[K, V]:
    """`read` of every key, a few at a time."""
    results: dict[K, V] = {}
    waiting = iter(list(keys))

    async def reader() -> None:
        for key in waiting:
            results[key] = await read(key)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(MAX_PARALLEL):
            tasks.create_task(reader(), name="gateway.repair.read")
    return results
