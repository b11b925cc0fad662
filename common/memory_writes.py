"""The scheduler's writes on a `MemoryServer`: each changes one key, or answers False."""

from collections.abc import Callable
from typing import Any

from common import bus, codec, entries, hashes
from common.bus import EntryId, Fields
from common.entries import CONTROL, MAX_ID, OPENED_ID, REQUESTS, log_of, step_id
from common.memory_server import MemoryServer
from common.messages import RequestId


def _write_once(server: MemoryServer, key: str, entry: EntryId, fields: Fields) -> bool:
    """An id that is refused counts as landed only if this very entry stands there."""
    return server.add(key, entry, fields) or server.stream(key).get(entry) == fields


def _write_journal(
    server: MemoryServer, request: RequestId, entry: EntryId, fields: Fields
) -> bool:
    """The head first and once; nothing after an end."""
    key = f"journal:{request}"
    stream = server.stream(key)
    if (stream.last == (0, 0)) != (entry == OPENED_ID) or stream.last[1] == 2:
        return stream.get(entry) == fields
    return _write_once(server, key, entry, fields)


def _head(server: MemoryServer, _epoch: int, write: bus.WriteHead) -> bool:
    head = write.head
    return _write_journal(server, head.request_id, OPENED_ID, entries.head_fields(head))


def _tokens(server: MemoryServer, _epoch: int, write: bus.WriteTokens) -> bool:
    fields = entries.tokens_fields(write.tokens)
    return _write_journal(server, write.request_id, f"{write.total}-0", fields)


def _end(server: MemoryServer, _epoch: int, write: bus.WriteEnd) -> bool:
    fields = entries.end_fields(write.end)
    landed = _write_journal(server, write.end.request_id, f"{write.total}-2", fields)
    if landed:
        for gateway in write.gateways:
            server.publish(gateway, codec.encode_ended(write.end))
    return landed


def _owner(server: MemoryServer, _epoch: int, write: bus.SetOwner) -> bool:
    log = log_of(write.worker)
    open_log = log in server.streams and server.stream(log).get(MAX_ID) is None
    return (
        open_log
        and _is_open(server, write.request_id)
        and _set(server, "owners", write.request_id, write.worker.encode())
    )


def _suspect(server: MemoryServer, _epoch: int, write: bus.SetSuspect) -> bool:
    deaths = b"%d" % write.deaths
    return _is_open(server, write.request_id) and _set(server, "suspects", write.request_id, deaths)


def _is_open(server: MemoryServer, request: RequestId) -> bool:
    """It has a journal, without an end."""
    journal = f"journal:{request}"
    return journal in server.streams and server.stream(journal).last[1] != 2


def _set(server: MemoryServer, key: str, field: str, value: bytes) -> bool:
    server.hash(key)[field.encode()] = value
    return True


def _drop(server: MemoryServer, key: str, field: str) -> bool:
    server.hash(key).pop(field.encode(), None)
    return True


def _delete(server: MemoryServer, key: str, entry: EntryId) -> bool:
    server.stream(key).delete(entry)
    return True


def _trim(server: MemoryServer, key: str, before: int) -> bool:
    server.stream(key).trim(step_id(before))
    return True


def _expire(server: MemoryServer, key: str, seconds: float) -> bool:
    server.expire_in(key, seconds)
    return True


def _bounded(server: MemoryServer, key: str, entry: EntryId, value: bytes) -> bool:
    landed = _write_once(server, key, entry, entries.shown_fields(value))
    server.stream(key).keep(MAX_SHOWN)
    return landed


MAX_SHOWN = 1000  # entries of `timeline` and `dead`

WRITERS: dict[type, Callable[[MemoryServer, int, Any], bool]] = {
    bus.WritePlan: lambda s, _, w: _write_once(
        s, f"steps:{w.worker}", step_id(w.plan.step), entries.plan_fields(w.plan)
    ),
    bus.WriteHead: _head,
    bus.WriteTokens: _tokens,
    bus.WriteEnd: _end,
    bus.SetOwner: _owner,
    bus.SetSuspect: _suspect,
    bus.SetStatus: lambda s, _, w: _set(s, "status", w.field, w.value),
    bus.SetShare: lambda s, _, w: _set(s, "shares", w.tenant, hashes.share_value(w.share)),
    bus.AddTimeline: lambda s, epoch, w: _bounded(s, "timeline", f"{epoch}-{w.index}", w.value),
    bus.AddDead: lambda s, epoch, w: _bounded(s, "dead", f"{epoch}-{w.index}", w.value),
    bus.CloseLog: lambda s, _, w: _write_once(s, log_of(w.worker), MAX_ID, entries.CLOSED),
    bus.CloseSteps: lambda s, _, w: _write_once(s, f"steps:{w.worker}", MAX_ID, entries.CLOSED),
    bus.DropOwner: lambda s, _, w: _drop(s, "owners", w.request_id),
    bus.DropSuspect: lambda s, _, w: _drop(s, "suspects", w.request_id),
    bus.DropShare: lambda s, _, w: _drop(s, "shares", w.tenant),
    bus.DropSubmit: lambda s, _, w: _delete(s, REQUESTS, w.entry),
    bus.DropControl: lambda s, _, w: _delete(s, CONTROL, w.entry),
    bus.DropWorker: lambda s, _, w: _drop(s, "workers", w.worker),
    bus.DropGateway: lambda s, _, w: _drop(s, "gateways", w.gateway),
    bus.TrimLog: lambda s, _, w: _trim(s, log_of(w.worker), w.before),
    bus.TrimSteps: lambda s, _, w: _trim(s, f"steps:{w.worker}", w.before),
    bus.ExpireJournal: lambda s, _, w: _expire(s, f"journal:{w.request_id}", w.seconds),
    bus.ExpireWorker: lambda s, _, w: _expire(
        s, log_of(w.worker) if w.log else f"steps:{w.worker}", w.seconds
    ),
}
