"""Round trips of every message, and garbage that is a `DecodeError` and nothing else."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import codec, entries, hashes
from common.bus import Lease, Status
from common.json_values import DecodeError
from common.messages import (
    VERSION,
    Chunk,
    Control,
    ControlKind,
    Ended,
    Ending,
    FinishReason,
    Journal,
    JournalHead,
    RowStart,
    Sampled,
    Sampling,
    StepPlan,
    StepResult,
    Submit,
    TokenBatch,
    WorkerHello,
)
from tests.common import examples

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
counts = st.integers(0, 2**53)
tokens = st.lists(st.integers(0, 2**31), max_size=5).map(tuple)
floats = st.floats(-1e9, 1e9)
reasons = st.sampled_from(FinishReason)
json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | floats | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
frames = st.dictionaries(names, json, max_size=3)


def tuples(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=4).map(tuple)


sampling = st.builds(
    Sampling,
    st.integers(0, 2**63 - 1),
    temperature=floats,
    top_p=floats,
    top_k=counts,
    min_p=floats,
    presence_penalty=floats,
    frequency_penalty=floats,
    repetition_penalty=floats,
    logit_bias=tuples(st.tuples(counts, floats)),
)
ending = st.builds(Ending, counts, min_tokens=counts, end_tokens=tokens)
submits = st.builds(
    Submit,
    submission_id=names,
    prompts=tuples(tokens),
    n=counts,
    sampling=sampling,
    ending=ending,
    gateway=names,
    tenant=names,
    priority=st.integers(-(2**53), 2**53),
    deadline_seconds=st.none() | floats,
    ttft_target_seconds=st.none() | floats,
    resumable=st.booleans(),
    digest=names,
    frame=frames,
)
chunks = st.builds(Chunk, names, counts, counts, tokens, st.booleans())
rows = st.builds(RowStart, names, tokens, counts, sampling, ending, tuples(names), counts)
swaps = tuples(st.tuples(counts, counts))
plans = st.builds(
    StepPlan,
    counts,
    released=tuples(names),
    admitted=tuples(rows),
    chunks=tuples(chunks),
    gateways=tuples(st.tuples(names, tuples(names))),
    swap_out=swaps,
    swap_in=swaps,
)
sampled = st.builds(Sampled, names, counts, counts, st.none() | reasons)
results = st.builds(
    StepResult, counts, tuples(sampled), floats, errors=st.dictionaries(names, names, max_size=3)
)
hellos = st.builds(
    WorkerHello,
    names,
    names,
    names,
    *[counts] * 5,
    num_host_blocks=counts,
    beat=counts,
    step=counts,
    step_beats=counts,
    leaving=st.booleans(),
    failed=names,
)
ends = st.builds(Ended, names, counts, reasons, error=names, cached_tokens=counts)
heads = st.builds(JournalHead, names, names, counts, names, names, frames)

MESSAGES: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Callable[..., Any]]] = {
    "submit": (submits, codec.encode_submit, codec.decode_submit),
    "plan": (plans, codec.encode_plan, codec.decode_plan),
    "result": (results, codec.encode_result, codec.decode_result),
    "hello": (hellos, codec.encode_hello, codec.decode_hello),
    "tokens": (
        st.builds(TokenBatch, tuples(sampled)),
        codec.encode_token_batch,
        codec.decode_notice,
    ),
    "ended": (ends, codec.encode_ended, codec.decode_notice),
    "head": (heads, codec.encode_head, codec.decode_head),
}
EXAMPLES = {
    "submit": codec.encode_submit(examples.submit()),
    "plan": codec.encode_plan(
        replace(examples.plan(3), swap_out=((4, 0), (5, 1)), swap_in=((6, 2),))
    ),
    "result": codec.encode_result(examples.result(3)),
    "hello": codec.encode_hello(examples.hello()),
    "tokens": codec.encode_token_batch(TokenBatch(examples.result(3).sampled)),
    "ended": codec.encode_ended(examples.end()),
    "head": codec.encode_head(examples.head()),
}
every_message = pytest.mark.parametrize("name", MESSAGES)


@every_message
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_round_trip(name: str, data: st.DataObject) -> None:
    messages, encode, decode = MESSAGES[name]
    message = data.draw(messages)
    assert decode(encode(message)) == message


@every_message
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_garbage_is_a_decode_error(name: str, data: st.DataObject) -> None:
    """Any JSON in place of any part of a message is read, or refused in the one way."""
    _, _, decode = MESSAGES[name]
    value = orjson.loads(EXAMPLES[name])
    path = data.draw(st.sampled_from(list(_paths(value))))
    spoiled = orjson.dumps(_replaced(value, path, data.draw(json)))
    with contextlib.suppress(DecodeError):
        decode(spoiled)


@every_message
@settings(max_examples=30, deadline=None)
@given(data=st.binary(max_size=20))
def test_bytes_that_are_no_message(name: str, data: bytes) -> None:
    with pytest.raises(DecodeError):
        MESSAGES[name][2](data)


@every_message
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_message_cut_short_is_refused(name: str, data: st.DataObject) -> None:
    whole = EXAMPLES[name]
    with pytest.raises(DecodeError, match="no JSON"):
        MESSAGES[name][2](whole[: data.draw(st.integers(0, len(whole) - 1))])


@every_message
def test_every_required_field_is_missed(name: str) -> None:
    """Only what a plan or a result leaves out when it is empty may be missing."""
    optional = {"released", "admitted", "gateways", "chunks", "errors", "swap_out", "swap_in"}
    value = orjson.loads(EXAMPLES[name])
    for field in value.keys() - optional - {"v"}:
        rest = {key: kept for key, kept in value.items() if key != field}
        with pytest.raises(DecodeError, match="is missing"):
            MESSAGES[name][2](orjson.dumps(rest))


@every_message
def test_another_version_is_refused_by_name(name: str) -> None:
    for version in (VERSION + 1, 0, "1", None, True):
        value = orjson.loads(EXAMPLES[name]) | {"v": version}
        with pytest.raises(DecodeError, match=r"version .* is not spoken here"):
            MESSAGES[name][2](orjson.dumps(value))


@every_message
def test_what_a_later_writer_adds_is_ignored(name: str) -> None:
    decode = MESSAGES[name][2]
    value = orjson.loads(EXAMPLES[name]) | {"added": [1]}
    assert decode(orjson.dumps(value)) == decode(EXAMPLES[name])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", -1),
        ("step", True),
        ("step", 1.0),
        ("seconds", "1"),
        ("seconds", True),
        ("sampled", None),
        ("sampled", [["a.0", 0]]),
        ("sampled", [["a.0", 0, 1, "stop", 5]]),
        ("sampled", [["a.0", 0, 1, "never"]]),
        ("sampled", [["a.0", 0, 1, None]]),
        ("sampled", [["a.0", -1, 1]]),
        ("sampled", [["a.0", 0, -1]]),
        ("sampled", [["a.0", 0, True]]),
        ("sampled", [["a.0", 0, 1.5]]),
        ("sampled", [[7, 0, 1]]),
        ("sampled", ["abc"]),
        ("errors", {"a.0": 1}),
        ("errors", []),
    ],
)
def test_a_result_with_a_wrong_value_is_refused(field: str, value: Any) -> None:
    spoiled = orjson.loads(EXAMPLES["result"]) | {field: value}
    with pytest.raises(DecodeError):
        codec.decode_result(orjson.dumps(spoiled))


@pytest.mark.parametrize("direction", ["swap_out", "swap_in"])
@pytest.mark.parametrize(
    "pairs", [None, 5, [5], [[]], [[1]], [[1, 2, 3]], [[1, -1]], [[-1, 1]], [[1, True]], [["1", 2]]]
)
def test_a_swap_of_anything_but_pairs_of_blocks_is_refused(direction: str, pairs: Any) -> None:
    spoiled = orjson.loads(EXAMPLES["plan"]) | {direction: pairs}
    with pytest.raises(DecodeError):
        codec.decode_plan(orjson.dumps(spoiled))


@pytest.mark.parametrize("prompt", [[1, True], [1.0], [-1], ["1"], 5, None, [[1]]])
def test_a_prompt_of_anything_but_tokens_is_refused(prompt: Any) -> None:
    spoiled = orjson.loads(EXAMPLES["submit"]) | {"prompts": [prompt]}
    with pytest.raises(DecodeError):
        codec.decode_submit(orjson.dumps(spoiled))


def test_rows_are_small_arrays() -> None:
    plan = StepPlan(5, chunks=(Chunk("a.0", 7, 1, (3,), True), Chunk("b.1", 0, 8, (), False)))
    assert codec.encode_plan(plan) == (
        b'{"v":2,"step":5,"chunks":[["a.0",7,1,[3],1],["b.1",0,8,[],0]]}'
    )
    swapping = StepPlan(6, swap_out=((3, 0), (4, 1)), swap_in=((5, 2),))
    assert (
        codec.encode_plan(swapping)
        == b'{"v":2,"step":6,"swap_out":[[3,0],[4,1]],"swap_in":[[5,2]]}'
    )
    result = StepResult(
        5, (Sampled("a.0", 7, 42), Sampled("b.1", 0, 9, FinishReason.LENGTH)), seconds=0.5
    )
    assert codec.encode_result(result) == (
        b'{"v":2,"step":5,"seconds":0.5,"sampled":[["a.0",7,42],["b.1",0,9,"length"]]}'
    )


# Entries


@given(
    kind=st.sampled_from(ControlKind),
    target=names | names.map("tenant:{}".format) | names.map("worker:{}".format),
    kept=counts,
    gateway=names,
    priority=st.integers(-(2**53), 2**53),
    weight=st.floats(1e-300, 1e300),
)
def test_control_keeps_what_its_kind_uses(
    kind: ControlKind, target: str, kept: int, gateway: str, priority: int, weight: float
) -> None:
    read = entries.read_control(
        entries.control_fields(Control(kind, target, kept, gateway, priority, weight))
    )
    assert read == Control(
        kind,
        target,
        kept if kind is ControlKind.STOP else 0,
        gateway,
        priority if kind is ControlKind.PRIORITY else 0,
        weight if kind is ControlKind.WEIGHT else 1.0,
    )


@pytest.mark.parametrize(
    ("fields", "target"),
    [
        ({b"kind": b"drain", b"tenant": b"alice"}, "tenant:alice"),
        ({b"kind": b"drain", b"request": b"tenant:alice"}, "tenant:alice"),
        ({b"kind": b"release", b"worker": b"w-1"}, "worker:w-1"),
        ({b"kind": b"cancel", b"tenant": b"a:b c"}, "tenant:a:b c"),
        ({b"kind": b"weight", b"tenant": b"", b"weight": b"2"}, "tenant:"),
        ({b"kind": b"hold", b"request": b"r.0", b"tenant": b"alice"}, "r.0"),
    ],
)
def test_a_tenant_and_a_worker_may_be_named_by_fields_of_their_own(
    fields: dict[bytes, bytes], target: str
) -> None:
    assert entries.read_control(fields).target == target


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {b"kind": b"cancel"},
        {b"kind": b"cancel", b"worker": b"w"},
        {b"kind": b"cancel", b"request": b"\xff"},
        {b"kind": b"stop", b"request": b"a"},
        {b"kind": b"stop", b"request": b"a", b"kept": b"-1"},
        {b"kind": b"stop", b"request": b"a", b"kept": b"1" * 5000},
        {b"kind": b"priority", b"request": b"a", b"priority": b"high"},
        {b"kind": b"stop", b"tenant": b"a", b"kept": b"1"},
        {b"kind": b"weight", b"tenant": b"a"},
        {b"kind": b"weight", b"tenant": b"a", b"weight": b"0"},
        {b"kind": b"weight", b"tenant": b"a", b"weight": b"-1"},
        {b"kind": b"weight", b"tenant": b"a", b"weight": b"nan"},
        {b"kind": b"weight", b"tenant": b"a", b"weight": b"inf"},
        {b"kind": b"weight", b"tenant": b"a", b"weight": b"\xff"},
    ],
)
def test_control_that_says_too_little_is_refused(fields: dict[bytes, bytes]) -> None:
    with pytest.raises(DecodeError):
        entries.read_control(fields)


@given(head=heads, parts=st.lists(tokens.filter(bool), max_size=4), end=st.none() | ends)
def test_journal_round_trip(head: JournalHead, parts: list[tuple[int, ...]], end: Any) -> None:
    request, total, stored = "r.0", 0, [("0-1", entries.head_fields(head))]
    for part in parts:
        total += len(part)
        stored.append((f"{total}-0", entries.tokens_fields(part)))
    if end is not None:
        stored.append((f"{total}-2", entries.end_fields(end)))
    expected = (
        None if end is None else Ended(request, end.kept, end.reason, end.error, end.cached_tokens)
    )
    assert entries.read_journal(request, stored) == Journal(head, sum(parts, ()), expected)


@given(status=st.builds(Status, *[counts] * 6, tokens_per_second=floats, wait_seconds=floats))
def test_status_round_trip(status: Status) -> None:
    assert hashes.read_status(hashes.status_value(status)) == status


@given(lease=st.builds(Lease, names, counts, counts))
def test_lease_round_trip(lease: Lease) -> None:
    assert hashes.read_lease(hashes.lease_fields(lease)) == lease


@given(value=json)
def test_a_status_of_anything_is_read(value: Any) -> None:
    assert isinstance(hashes.read_status(orjson.dumps(value)), Status)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from _paths(inner, (*path, key))


def _replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = value.copy()
    copy[path[0]] = _replaced(value[path[0]], path[1:], by)
    return copy
