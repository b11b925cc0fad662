"""A gateway: what it has shown of each request, and how messages and repairs move that on."""

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.keys import END, Notice, Redis, put
from tests.model.settings import Settings


class Repair(NamedTuple):
    """Reads done so far: owner, log, journal; the second look at the owner ends it."""

    owner: int | None
    log: tuple[tuple[int, int], ...] | None = None  # (position, token)
    journal: tuple[int, ...] | None = None
    kept: int | None = None


class Stream(NamedTuple):
    shown: tuple[int, ...] = ()
    done: bool = False
    repair: Repair | None = None
    stop_sent: bool = False


class Gateway(NamedTuple):
    phase: str = "unused"  # submitting, open, dead
    queue: tuple[Notice, ...] = ()  # published, not yet looked at
    streams: tuple[Stream, ...] = ()

    @property
    def listens(self) -> bool:
        return self.phase in {"submitting", "open"}


def publish(gateway: Gateway, notices: tuple[Notice, ...], settings: Settings) -> Gateway:
    """What a gateway does not get of this is modelled as lost from its queue."""
    if not gateway.listens:
        return gateway
    wanted = tuple(n for n in notices if not gateway.streams[n.choice].done)
    if not wanted:
        return gateway
    gateway = gateway._replace(queue=gateway.queue + wanted)
    while settings.hears_all and gateway.queue:
        gateway = hear(gateway, settings)
    return gateway


def hear(gateway: Gateway, settings: Settings) -> Gateway:
    """Look at the first message: only the next position is shown, whatever else is dropped."""
    notice, queue = gateway.queue[0], gateway.queue[1:]
    stream = gateway.streams[notice.choice]
    if notice.position == END:
        stream = _finish(stream, notice.token, settings)
    elif _is_next(notice.position, len(stream.shown), settings.without):
        stream = show(stream, (notice.token,), settings)
    return _with_stream(gateway._replace(queue=queue), notice.choice, stream)


def _is_next(position: int, num_shown: int, without: str) -> bool:
    if position > num_shown:
        return without == "only the next position is shown"
    return position == num_shown or without == "known positions are dropped"


def show(stream: Stream, tokens: tuple[int, ...], settings: Settings) -> Stream:
    """Nothing is shown beyond a stop string."""
    shown = stream.shown + tokens
    if settings.stop and settings.without != "nothing beyond a stop":
        shown = shown[: settings.stop]
    return stream._replace(shown=shown)


def _finish(stream: Stream, kept: int, settings: Settings) -> Stream:
    """An end counts when all that it keeps is shown; until then it is a jump."""
    if settings.stop:
        kept = min(kept, settings.stop)
    if len(stream.shown) < kept and settings.without != "an end beyond what is shown is a jump":
        return stream
    return Stream(stream.shown, done=True, stop_sent=stream.stop_sent)


def repairs(redis: Redis, gateway: Gateway, settings: Settings) -> Iterator[tuple[str, Gateway]]:
    """The next read of each repair. One may begin at any time: silence is reason enough."""
    for choice, stream in enumerate(gateway.streams):
        if not stream.done:
            name, after = _next_read(redis, choice, stream, settings)
            yield f"{name} of {choice}", _with_stream(gateway, choice, after)


def _next_read(redis: Redis, choice: int, stream: Stream, settings: Settings) -> tuple[str, Stream]:
    repair, owner = stream.repair, redis.owners[choice]
    if repair is None:
        return "reads owner", stream._replace(repair=Repair(owner))
    if repair.log is None:
        rows = _log_rows(redis, choice, repair.owner)
        return "reads log", stream._replace(repair=repair._replace(log=rows))
    if repair.journal is None:
        journal = redis.journals[choice]
        tokens, kept = (journal.tokens, journal.kept) if journal else ((), None)
        return "reads journal", stream._replace(repair=repair._replace(journal=tokens, kept=kept))
    stream = stream._replace(repair=None)
    if owner != repair.owner and settings.without != "owners is read again":
        return "starts again", stream
    return "merges", _merge(stream, repair, settings)


def _log_rows(redis: Redis, choice: int, owner: int | None) -> tuple[tuple[int, int], ...]:
    log = redis.logs[owner] if owner is not None else None
    entries = log.entries if log else ()
    return tuple((r.position, r.token) for _, rows in entries for r in rows if r.choice == choice)


def _merge(stream: Stream, repair: Repair, settings: Settings) -> Stream:
    assert repair.log is not None
    assert repair.journal is not None
    found = {**dict(repair.log), **dict(enumerate(repair.journal))}
    start = len(stream.shown)
    if settings.without == "only the next position is shown":
        new = [token for position, token in sorted(found.items()) if position >= start]
    else:
        new = []
        while start + len(new) in found:
            new.append(found[start + len(new)])
    if repair.kept is not None:
        new = new[: max(repair.kept - start, 0)]
    stream = show(stream, tuple(new), settings)
    return stream if repair.kept is None else _finish(stream, repair.kept, settings)


def _with_stream(gateway: Gateway, choice: int, stream: Stream) -> Gateway:
    queue = gateway.queue
    if stream.done:  # its messages are dropped unseen
        queue = tuple(notice for notice in queue if notice.choice != choice)
    return gateway._replace(queue=queue, streams=put(gateway.streams, choice, stream))
