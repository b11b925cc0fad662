"""docs/protocol.md says what the code does: every example decodes, every name exists."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common import codec, entries, hashes
from common.bus import Lease, Outcome, SetStatus, Status
from common.entries import MAX_ID, OPENED_ID, Fields
from common.messages import ControlKind, Ended, TokenBatch
from common.redis_bus import RedisBus, keys, server
from scheduler.core.request import Request
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.fleet import Fleet
from scheduler.ledger import Ledger
from scheduler.quarantine import Quarantine
from scheduler.status import dead_entry, status_writes
from scheduler.timeline import Timeline
from scheduler.totals import Totals
from tests.common.examples import WORKER, hello, submit
from tests.valkey import ValkeyServer

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
PREFIX = "chairlift:{default}:"

Strings = list[str]


def examples() -> dict[str, Strings]:
    """Command to the strings that redis-cli printed, as they stand in Redis."""
    found: dict[str, Strings] = {}
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        command, _, output = block.partition("\n")
        quoted = re.findall(r'^[ \d)]+("(?:[^"\\]|\\.)*")$', output, re.MULTILINE)
        found[command.removeprefix("> ")] = [json.loads(text) for text in quoted]
    return found


EXAMPLES = examples()


def printed(command: str, name: str) -> Strings:
    return EXAMPLES[f"{command} {PREFIX}{name}" + (" - +" if command == "XRANGE" else "")]


def stream(name: str) -> Iterator[tuple[str, Fields]]:
    entry, fields = "", []
    for text in printed("XRANGE", name):
        if re.fullmatch(r"\d+-\d+", text):
            if entry:
                yield entry, _fields(fields)
            entry, fields = text, []
        else:
            fields.append(text)
    yield entry, _fields(fields)


def hash_of(name: str) -> Fields:
    return _fields(printed("HGETALL", name))


def _fields(texts: Strings) -> Fields:
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return {name.encode(): value.encode() for name, value in pairs}


def test_the_table_of_keys_is_that_of_the_code() -> None:
    table = re.findall(r"^\| `([a-z]+)(<[a-z]+>|:<[a-z]+>)?` \|", PAGE, re.MULTILINE)
    named = {name: kind.strip(":<>") for name, kind in table}
    expected = dict.fromkeys(keys.FIXED, "")
    expected |= dict.fromkeys(keys.PER_WORKER, "worker")
    expected |= dict.fromkeys(keys.PER_REQUEST, "request")
    expected |= dict.fromkeys(keys.CHANNELS, "gateway")
    assert named == expected
    [gpu] = re.findall(r"^\| `(chairlift:[a-z:]*)<gpu>` \|", PAGE, re.MULTILINE)
    assert gpu.encode() == keys.gpu("")


async def test_a_gpus_lease_is_as_the_page_shows_it(valkey: ValkeyServer, pool: str) -> None:
    [(command, printed)] = [
        (command, printed)
        for command, printed in EXAMPLES.items()
        if command.startswith("HGETALL chairlift:gpu:")
    ]
    key = command.removeprefix("HGETALL ").encode()
    shown = hashes.read_lease(_fields(printed))
    bus = RedisBus(valkey.url, pool)
    seen = Lease("", shown.epoch - 1, 0)
    lease = await bus.gpu_take(key.removeprefix(keys.gpu("")).decode(), shown.holder, seen)
    assert lease
    for _ in range(shown.beat):
        lease = await bus.gpu_renew(key.removeprefix(keys.gpu("")).decode(), lease)
        assert lease
    with valkey.client() as client:
        assert client.hgetall(key) == _fields(printed)
        client.delete(key)
    await bus.aclose()


def test_the_table_of_functions_is_that_of_the_library(valkey: ValkeyServer) -> None:
    documented = set(re.findall(r"^\| `(chairlift_[a-z_]+)`", PAGE, re.MULTILINE))
    leaders = set(re.findall(r"^\| `(chairlift_[a-z_]+)` \*leader\*", PAGE, re.MULTILINE))
    with valkey.client() as client:
        client.function_load(server.library_code(), replace=True)
        [library] = client.function_list(library=server.LIBRARY, withcode=False)
        functions = [dict(_pairs(each)) for each in dict(_pairs(library))[b"functions"]]
        loaded = {each[b"name"].decode() for each in functions}
        fenced = {name for name in loaded if _is_fenced(client, name)}
    assert documented == loaded
    assert leaders == fenced
    assert all(each[b"flags"] in ([b"allow-oom"], {b"allow-oom"}) for each in functions)


def _is_fenced(client: object, name: str) -> bool:
    """Whether it writes nothing and says FENCED where there is no lease."""
    names = [f"{PREFIX}page:{i}" for i in range(4)]
    reply = client.fcall(name, 4, *names, "1", "1-0", "1", "1")  # type: ignore[attr-defined]
    client.delete(*names)  # type: ignore[attr-defined]
    return reply == Outcome.FENCED.value.encode()


def _pairs(reply: object) -> Iterator[tuple[bytes, object]]:
    if isinstance(reply, dict):
        yield from reply.items()
    else:
        items = iter(reply)  # type: ignore[call-overload]
        yield from zip(items, items, strict=True)


STREAMS: dict[str, Callable[[Fields], Fields]] = {
    "requests": lambda fields: entries.submit_fields(entries.read_submit(fields)),
    "control": lambda fields: entries.control_fields(entries.read_control(fields)),
    "steps:node1-7a3e": lambda fields: entries.plan_fields(codec.decode_plan(fields[b"plan"])),
}


@pytest.mark.parametrize("name", STREAMS)
def test_entries_decode_and_encode_to_themselves(name: str) -> None:
    shown = list(stream(name))
    assert shown
    for _, fields in shown:
        assert STREAMS[name](fields) == fields


def test_the_log_opens_has_results_and_is_closed() -> None:
    (first, opened), *results, (last, closed) = stream("results:node1-7a3e")
    assert (first, opened) == (OPENED_ID, entries.OPENED)
    assert (last, closed) == (MAX_ID, entries.CLOSED)
    assert len(results) >= 2
    for entry, fields in results:
        result = entries.read_result(fields)
        assert entry == entries.step_id(result.step)
        assert entries.result_fields(result) == fields


def test_the_journal_has_a_head_tokens_and_an_end() -> None:
    name = "journal:cmpl-5d1f.0"
    head, tokens, end = stream(name)
    journal = entries.read_journal("cmpl-5d1f.0", [head, tokens, end])
    assert journal.head is not None
    assert journal.end is not None
    assert head == (OPENED_ID, entries.head_fields(journal.head))
    assert tokens == (f"{len(journal.tokens)}-0", entries.tokens_fields(journal.tokens))
    assert end == (f"{len(journal.tokens)}-2", entries.end_fields(journal.end))


def test_hashes_decode_and_encode_to_themselves() -> None:
    lease = hash_of("lease")
    assert hashes.lease_fields(hashes.read_lease(lease)) == lease
    workers = hash_of("workers")
    hellos = hashes.read_workers(workers)
    assert {w.encode(): codec.encode_hello(hello) for w, hello in hellos.items()} == workers
    gateways = hash_of("gateways")
    beats = hashes.read_gateways(gateways)
    assert {g.encode(): hashes.gateway_value(beat) for g, beat in beats.items()} == gateways
    status = hash_of("status")[hashes.STATUS_FIELD.encode()]
    assert hashes.status_value(hashes.read_status(status)) == status
    assert set(hash_of("secret")) == {hashes.SECRET_FIELD.encode()}
    assert hashes.read_owners(hash_of("owners"))
    assert hashes.read_suspects(hash_of("suspects")) == {"cmpl-5d1f.1": 1}
    shares = hash_of("shares")
    read = hashes.read_shares(shares)
    assert {t.encode(): hashes.share_value(share) for t, share in read.items()} == shares


def test_notices_decode_and_encode_to_themselves() -> None:
    shown = printed("SUBSCRIBE", "tokens:gw-2c91")
    messages = [text.encode() for text in shown[2::3]]
    notices = [codec.decode_notice(message) for message in messages]
    assert {type(notice) for notice in notices} == {TokenBatch, Ended}
    for notice, message in zip(notices, messages, strict=True):
        encode = codec.encode_ended if isinstance(notice, Ended) else codec.encode_token_batch
        assert encode(notice) == message


def test_what_a_person_writes_is_understood() -> None:
    by_hand = re.findall(r"^> XADD chairlift:\{default\}:control \* (.*)$", PAGE, re.MULTILINE)
    assert len(by_hand) >= 4
    for line in by_hand:
        entries.read_control(_fields(line.split()))


def test_the_table_of_controls_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| ([a-z, ]+) \| (?:requests|request|tenant|worker)\b", PAGE, re.MULTILINE)
    named = {kind for row in rows for kind in row.split(", ")}
    assert named == {kind.value for kind in ControlKind} - {"release"}  # it ends the others
    assert all(f"kind {kind} " in PAGE for kind in ("release", "drain", "weight"))


def test_what_people_look_at_has_the_fields_that_are_written() -> None:
    core = Scheduler(Limits(64, 8, 1, 512), Memory(64, 16))
    fleet, ledger = Fleet(lambda _hello: core, 2.0, 10.0), Ledger(60.0)
    fleet.watch({WORKER: hello()}, 0.0)
    fleet.open(WORKER)
    request = Request.from_submit(submit(), 0, 1)
    [account] = ledger.open("1-0", submit(), [request]).accounts
    fleet.assign(request)
    plan, worker = core.schedule(), fleet.workers[WORKER]
    assert plan is not None

    told = status_writes(fleet, Quarantine(fleet), Totals(), Status())
    written = {write.field.encode(): write.value for write in told if isinstance(write, SetStatus)}
    shown = hash_of("status")
    assert {name: _names(value) for name, value in shown.items() if name != b"waiting"} == {
        name: _names(value) for name, value in written.items() if name != b"waiting"
    }
    assert _names(shown[b"waiting"]) == _names(written[b"running"])
    step = Timeline().step(0.0, worker, plan).value
    for name, entry in (("timeline", step), ("dead", dead_entry(account))):
        assert [_names(fields[b"json"]) for _, fields in stream(name)] == [_names(entry)]


def _names(value: bytes) -> list[str]:
    """Of the fields of a JSON object, or of the first object of a list."""
    decoded = json.loads(value)
    return list(decoded[0] if isinstance(decoded, list) else decoded)
