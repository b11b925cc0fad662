"""How messages lie in streams and hashes: their fields and ids, for both buses alike.

What cannot be understood is passed over and reported once, or one bad entry would stop every
reader in turn. A plan is the exception: a worker that skipped one would compute nonsense, so its
steps count as closed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import orjson
import structlog

from common import codec
from common.bus import EntryId, Fields, Lease, Log, News, Plans, Status
from common.codec import DecodeError
from common.messages import (
    Control,
    ControlKind,
    Ended,
    GatewayId,
    Journal,
    JournalHead,
    RequestId,
    StepPlan,
    StepResult,
    Submit,
    WorkerHello,
    WorkerId,
)

log = structlog.get_logger()

Entry = tuple[EntryId, Fields]

REQUESTS = "requests"
CONTROL = "control"

MAX_ID: EntryId = "18446744073709551615-18446744073709551615"  # closes a stream: nothing is greater
OPENED_ID: EntryId = "0-1"  # of a log, and of a journal's head
CLOSED = {b"closed": b"1"}
OPENED = {b"opened": b"1"}


def log_of(worker: WorkerId) -> str:
    return f"results:{worker}"


def worker_of(log_name: str) -> WorkerId:
    return WorkerId(log_name.removeprefix("results:"))


def step_id(step: int) -> EntryId:
    return f"{step}-0"


def behind(step: int) -> EntryId:
    """The cursor for steps > `step`: behind the opening of a log too, which is no news."""
    return f"{step}-1"


def step_of(entry: EntryId) -> int:
    return int(entry.partition("-")[0])


@lru_cache(maxsize=1024)  # a field that is read again and again is reported once
def pass_over(where: str, entry: str, error: str, num_bytes: int) -> None:
    log.warning("passed over", where=where, entry=entry, error=error, num_bytes=num_bytes)


def report(where: str, entry: str, fields: Iterable[bytes], error: DecodeError) -> None:
    pass_over(where, entry, str(error), sum(map(len, fields)))


# --- requests and control ---------------------------------------------------------------------


def submit_fields(submit: Submit) -> dict[bytes, bytes]:
    return {b"id": submit.submission_id.encode(), b"submit": codec.encode_submit(submit)}


def read_submit(fields: Fields) -> Submit:
    return codec.decode_submit(_field(fields, b"submit"))


def control_fields(control: Control) -> dict[bytes, bytes]:
    """Flat, and only what the kind uses, as a person would write it with XADD."""
    fields = {b"kind": control.kind.value.encode(), b"request": control.target.encode()}
    if control.kind is ControlKind.STOP:
        fields[b"kept"] = b"%d" % control.kept
    if control.gateway:
        fields[b"gateway"] = control.gateway.encode()
    if control.kind is ControlKind.PRIORITY:
        fields[b"priority"] = b"%d" % control.priority
    return fields


def read_control(fields: Fields) -> Control:
    """`request` names the target; for a drain, `worker` or `tenant` may be written instead."""
    kind = _text(fields, b"kind")
    if kind not in CONTROL_KINDS:
        raise DecodeError(f"no kind of control: {kind!r:.40}")
    names = (b"request", b"worker", b"tenant") if kind == ControlKind.DRAIN else (b"request",)
    target = next((name for name in names if name in fields), names[0])
    return Control(
        kind=CONTROL_KINDS[kind],
        target=_text(fields, target),
        kept=_count(fields, b"kept") if kind == ControlKind.STOP else 0,
        gateway=GatewayId(_text(fields, b"gateway") if b"gateway" in fields else ""),
        priority=_integer(fields, b"priority") if kind == ControlKind.PRIORITY else 0,
    )


CONTROL_KINDS = {kind.value: kind for kind in ControlKind}


# --- steps and results ------------------------------------------------------------------------


def plan_fields(plan: StepPlan) -> dict[bytes, bytes]:
    return {b"plan": codec.encode_plan(plan)}


def read_plans(where: str, entries: Iterable[Entry]) -> Plans:
    plans: list[StepPlan] = []
    for entry, fields in entries:
        if entry == MAX_ID:
            return Plans(tuple(plans), closed=True)
        try:
            plans.append(codec.decode_plan(_field(fields, b"plan")))
        except DecodeError as error:
            report(where, entry, fields.values(), error)
            return Plans(tuple(plans), closed=True)
    return Plans(tuple(plans))


def result_fields(result: StepResult) -> dict[bytes, bytes]:
    return {b"result": codec.encode_result(result)}


def read_result(fields: Fields) -> StepResult:
    return codec.decode_result(_field(fields, b"result"))


def read_log(where: str, entries: Iterable[Entry]) -> Log:
    results: list[StepResult] = []
    for entry, fields in entries:
        if entry == MAX_ID:
            return Log(tuple(results), closed=True)
        if entry == OPENED_ID:
            continue
        try:
            results.append(read_result(fields))
        except DecodeError as error:
            report(where, entry, fields.values(), error)
    return Log(tuple(results))


def read_news(entries: Mapping[str, Sequence[Entry]]) -> News:
    """What came in `requests`, `control` and logs (`results:<worker>`)."""
    submits, controls, garbage = [], [], []
    results: dict[WorkerId, list[StepResult]] = {}
    closed = set()
    for stream, entry, fields in _flat(entries):
        try:
            if stream == REQUESTS:
                submits.append((entry, read_submit(fields)))
            elif stream == CONTROL:
                controls.append((entry, read_control(fields)))
            elif entry == MAX_ID:
                closed.add(worker_of(stream))
            elif entry != OPENED_ID:
                result = read_result(fields)
                results.setdefault(worker_of(stream), []).append(result)
        except DecodeError as error:
            report(stream, entry, fields.values(), error)
            garbage.append((stream, entry))
    return News(
        submits=tuple(submits),
        controls=tuple(controls),
        results={worker: tuple(of_worker) for worker, of_worker in results.items()},
        closed=frozenset(closed),
        garbage=tuple(garbage),
        requests_cursor=_last(entries.get(REQUESTS)),
        control_cursor=_last(entries.get(CONTROL)),
    )


def _flat(entries: Mapping[str, Sequence[Entry]]) -> Iterator[tuple[str, EntryId, Fields]]:
    for stream, of_stream in entries.items():
        for entry, fields in of_stream:
            yield stream, entry, fields


def _last(entries: Sequence[Entry] | None) -> EntryId | None:
    return entries[-1][0] if entries else None


# --- journals ---------------------------------------------------------------------------------


def head_fields(head: JournalHead) -> dict[bytes, bytes]:
    return {b"head": codec.encode_head(head)}


def tokens_fields(tokens: tuple[int, ...]) -> dict[bytes, bytes]:
    return {b"tokens": codec.encode_tokens(tokens)}


def end_fields(end: Ended) -> dict[bytes, bytes]:
    return {
        b"reason": end.reason.value.encode(),
        b"kept": b"%d" % end.kept,
        b"error": end.error.encode(),
        b"cached_tokens": b"%d" % end.cached_tokens,
    }


def read_journal(request: RequestId, entries: Iterable[Entry]) -> Journal:
    """Tokens count as far as they are contiguous: an entry's id says up to which it goes."""
    head: JournalHead | None = None
    end: Ended | None = None
    tokens: list[int] = []
    for entry, fields in entries:
        try:
            if b"head" in fields:
                head = codec.decode_head(fields[b"head"])
            elif b"reason" in fields:
                end = _read_end(request, fields)
            else:
                tokens += _read_tokens(step_of(entry) - len(tokens), fields)
        except DecodeError as error:
            report(f"journal:{request}", entry, fields.values(), error)
    return Journal(head, tuple(tokens), end)


def _read_tokens(expected: int, fields: Fields) -> tuple[int, ...]:
    tokens = codec.decode_tokens(_field(fields, b"tokens"))
    if len(tokens) != expected:
        raise DecodeError(f"{len(tokens)} tokens where {expected} would be contiguous")
    return tokens


def _read_end(request: RequestId, fields: Fields) -> Ended:
    return Ended(
        request_id=request,
        kept=_count(fields, b"kept"),
        reason=codec.finish_reason(_text(fields, b"reason")),
        error=_text(fields, b"error"),
        cached_tokens=_count(fields, b"cached_tokens"),
    )


def shown_fields(value: bytes) -> dict[bytes, bytes]:
    """An entry of `timeline` or `dead`."""
    return {b"json": value}


# --- hashes -----------------------------------------------------------------------------------


def read_workers(fields: Fields) -> dict[WorkerId, WorkerHello]:
    workers = {}
    for worker, value in fields.items():
        try:
            workers[WorkerId(_decode(worker))] = codec.decode_hello(value)
        except DecodeError as error:
            report("workers", repr(worker), [value], error)
    return workers


def gateway_value(beat: int) -> bytes:
    return orjson.dumps({"beat": beat})


def read_gateways(fields: Fields) -> dict[GatewayId, int]:
    beats = {}
    for gateway, value in fields.items():
        try:
            beat = codec.count(codec.mapping(codec.load(value)).get("beat"))
            beats[GatewayId(_decode(gateway))] = beat
        except DecodeError as error:
            report("gateways", repr(gateway), [value], error)
    return beats


def read_owners(fields: Fields) -> dict[RequestId, WorkerId]:
    return {
        RequestId(request.decode(errors="replace")): WorkerId(worker.decode(errors="replace"))
        for request, worker in fields.items()
    }


def read_suspects(fields: Fields) -> dict[RequestId, int]:
    suspects = {}
    for request, value in fields.items():
        try:
            suspects[RequestId(_decode(request))] = _parse(value)
        except DecodeError as error:
            report("suspects", repr(request), [value], error)
    return suspects


def read_lease(fields: Fields) -> Lease:
    """A missing lease reads as one that nobody has held."""
    if not fields:
        return Lease()
    return Lease(_text(fields, b"holder"), _count(fields, b"epoch"), _count(fields, b"beat"))


def lease_fields(lease: Lease) -> dict[bytes, bytes]:
    return {
        b"holder": lease.holder.encode(),
        b"epoch": b"%d" % lease.epoch,
        b"beat": b"%d" % lease.beat,
    }


STATUS_FIELD = "summary"


def status_value(status: Status) -> bytes:
    return orjson.dumps(status)


def read_status(value: bytes | None) -> Status:
    """What is missing or unreadable reads as a scheduler that never led."""
    if value is None:
        return Status()
    try:
        fields = codec.mapping(codec.load(value))
        counts = {name: codec.count(fields[name]) for name in _STATUS_COUNTS if name in fields}
        rates = {name: codec.number(fields[name]) for name in _STATUS_RATES if name in fields}
    except DecodeError as error:
        report("status", STATUS_FIELD, [value], error)
        return Status()
    return Status(**counts, **rates)  # type: ignore[arg-type]  # names listed below


_STATUS_COUNTS = ("epoch", "beat", "steps", "num_waiting", "num_running", "waiting_tokens")
_STATUS_RATES = ("tokens_per_second", "wait_seconds")


# --- fields -----------------------------------------------------------------------------------


def _field(fields: Fields, name: bytes) -> bytes:
    if name not in fields:
        raise DecodeError(f"field {name.decode()} is missing")
    return fields[name]


def _text(fields: Fields, name: bytes) -> str:
    return _decode(_field(fields, name))


def _decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise DecodeError(f"no UTF-8: {value!r:.40}") from None


def _count(fields: Fields, name: bytes) -> int:
    number = _integer(fields, name)
    if number < 0:
        raise DecodeError(f"field {name.decode()} counts from 0: {number}")
    return number


def _integer(fields: Fields, name: bytes) -> int:
    return _parse(_field(fields, name))


def _parse(value: bytes) -> int:
    if len(value) > 20:
        raise DecodeError(f"integer expected: {value!r:.40}")
    try:
        return int(value)
    except ValueError:
        raise DecodeError(f"integer expected: {value!r:.40}") from None
