"""How messages lie in streams: their fields and ids, for both buses alike.

What cannot be understood is passed over and reported once, or one bad entry would stop every
reader in turn. A plan is the exception: a worker that skipped one would compute nonsense, so its
steps count as closed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from common import codec, json_values
from common.bus import EntryId, Fields, Log, News, Plans
from common.fields import count_field, integer_field, positive_field, required, text_field
from common.garbage import report
from common.json_values import DecodeError
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
    WorkerId,
)

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


# --- requests and control ---------------------------------------------------------------------


def submit_fields(submit: Submit) -> dict[bytes, bytes]:
    return {b"id": submit.submission_id.encode(), b"submit": codec.encode_submit(submit)}


def read_submit(fields: Fields) -> Submit:
    return codec.decode_submit(required(fields, b"submit"))


def control_fields(control: Control) -> dict[bytes, bytes]:
    """Flat, and only what the kind uses, as a person would write it with XADD."""
    name, target = _named(control)
    fields = {b"kind": control.kind.value.encode(), name: target.encode()}
    if control.kind is ControlKind.STOP:
        fields[b"kept"] = b"%d" % control.kept
    if control.gateway:
        fields[b"gateway"] = control.gateway.encode()
    if control.kind is ControlKind.PRIORITY:
        fields[b"priority"] = b"%d" % control.priority
    if control.kind is ControlKind.WEIGHT:
        fields[b"weight"] = repr(control.weight).encode()
    return fields


def _named(control: Control) -> tuple[bytes, str]:
    """The field that names the target, and what it holds."""
    prefix, colon, name = control.target.partition(":")
    if colon and prefix.encode() in TARGET_FIELDS.get(control.kind, ()):
        return prefix.encode(), name
    return b"request", control.target


def read_control(fields: Fields) -> Control:
    """`tenant alice` and `worker w` are short for `request tenant:alice` and `request worker:w`."""
    kind = text_field(fields, b"kind")
    if kind not in CONTROL_KINDS:
        raise DecodeError(f"no kind of control: {kind!r:.40}")
    return Control(
        kind=CONTROL_KINDS[kind],
        target=_target(CONTROL_KINDS[kind], fields),
        kept=count_field(fields, b"kept") if kind == ControlKind.STOP else 0,
        gateway=GatewayId(text_field(fields, b"gateway") if b"gateway" in fields else ""),
        priority=integer_field(fields, b"priority") if kind == ControlKind.PRIORITY else 0,
        weight=positive_field(fields, b"weight") if kind == ControlKind.WEIGHT else 1.0,
    )


def _target(kind: ControlKind, fields: Fields) -> str:
    for name in TARGET_FIELDS.get(kind, ()):
        if name in fields and b"request" not in fields:
            return f"{name.decode()}:{text_field(fields, name)}"
    return text_field(fields, b"request")


CONTROL_KINDS = {kind.value: kind for kind in ControlKind}
TARGET_FIELDS = {  # that may name a target, beside `request`
    ControlKind.CANCEL: (b"tenant",),
    ControlKind.HOLD: (b"tenant",),
    ControlKind.RELEASE: (b"tenant", b"worker"),
    ControlKind.PRIORITY: (b"tenant",),
    ControlKind.DRAIN: (b"tenant", b"worker"),
    ControlKind.WEIGHT: (b"tenant",),
}


# --- steps and results ------------------------------------------------------------------------


def plan_fields(plan: StepPlan) -> dict[bytes, bytes]:
    return {b"plan": codec.encode_plan(plan)}


def read_plans(where: str, entries: Iterable[Entry]) -> Plans:
    plans: list[StepPlan] = []
    for entry, fields in entries:
        if entry == MAX_ID:
            return Plans(tuple(plans), closed=True)
        try:
            plans.append(codec.decode_plan(required(fields, b"plan")))
        except DecodeError as error:
            report(where, entry, fields.values(), error)
            return Plans(tuple(plans), closed=True)
    return Plans(tuple(plans))


def result_fields(result: StepResult) -> dict[bytes, bytes]:
    return {b"result": codec.encode_result(result)}


def read_result(fields: Fields) -> StepResult:
    return codec.decode_result(required(fields, b"result"))


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
    tokens = codec.decode_tokens(required(fields, b"tokens"))
    if len(tokens) != expected:
        raise DecodeError(f"{len(tokens)} tokens where {expected} would be contiguous")
    return tokens


def _read_end(request: RequestId, fields: Fields) -> Ended:
    return Ended(
        request_id=request,
        kept=count_field(fields, b"kept"),
        reason=json_values.finish_reason(text_field(fields, b"reason")),
        error=text_field(fields, b"error"),
        cached_tokens=count_field(fields, b"cached_tokens"),
    )


def shown_fields(value: bytes) -> dict[bytes, bytes]:
    """An entry of `timeline` or `dead`."""
    return {b"json": value}
