"""Streams that go on: at another gateway, after a client left, byte for byte where they were."""

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from common.api_keys import make_key, parse_keys
from common.messages import ControlKind, FinishReason, RequestId
from gateway import routes, streams, token_router
from tests.gateway.client import Call
from tests.gateway.serving import TEXT, Serving, another, serving, tokens_of
from tests.gateway.test_api import error_of

ALICE, ALICE_LINE = make_key("alice")
BOB, BOB_LINE = make_key("bob")
KEYS = parse_keys(f"{ALICE_LINE}\n{BOB_LINE}")
ENDLESS = [1234] * 5000


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SURE_SECONDS", 0.0)
    monkeypatch.setattr(routes, "SILENCE_SECONDS", 0.05)
    monkeypatch.setattr(token_router, "WATCH_SECONDS", 0.01)


def pieces(body: bytes) -> list[bytes]:
    """The frames of a stream."""
    return [part + b"\n\n" for part in bytes(body).split(b"\n\n")[:-1]]


def last_id(frames: list[bytes]) -> str:
    lines = [line for frame in frames for line in frame.split(b"\n") if line.startswith(b"id: ")]
    return lines[-1].removeprefix(b"id: ").decode() if lines else ""


def resume(it: Serving, stream: str, last_event: str = "", **headers: str) -> Call:
    if last_event:
        headers["last-event-id"] = last_event
    return it.call(f"/v1/streams/{stream}", b"", "GET", **headers)


def keyed(it: Serving, key: str, last_event: str = "", **fields: Any) -> Call:
    body = {"model": it.service.model.name, "prompt": "Hello"} | fields
    headers = {"idempotency-key": key} | ({"last-event-id": last_event} if last_event else {})
    return it.call("/v1/completions", body, **headers)


def asked(it: Serving, kind: ControlKind) -> list[str]:
    """Targets of the controls of this kind."""
    return [control.target for control in it.pool.controls if control.kind is kind]


def nobody_leads(it: Serving) -> None:
    it.service.monitor.progress._beat_at = None
    it.service.monitor.progress.see = lambda *_: None  # type: ignore[method-assign]


def several(request: RequestId) -> list[int]:
    """Choices of different lengths, of which every other one has a stop string."""
    choice = int(request.rpartition(".")[2])
    return tokens_of(
        f"Choice {choice} says 🙂" + (" and goes on", " and so forth")[choice % 2] * (2 + choice)
    )


# A stream goes on


STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {}),
    "completion": ("/v1/completions", {"stream_options": {"include_usage": True}}),
    "stop": ("/v1/completions", {"stop": ["word after"]}),
    "length": (
        "/v1/chat/completions",
        {"max_tokens": 9, "stream_options": {"include_usage": True}},
    ),
    "choices": ("/v1/chat/completions", {"n": 3, "stream_options": {"include_usage": True}}),
    "prompts": ("/v1/completions", {"n": 2, "prompt": ["a", "b c"], "stop": ["on and"]}),
    "counted": ("/v1/chat/completions", {"stream_options": {"continuous_usage_stats": True}}),
    "counted-prompts": (
        "/v1/completions",
        {
            "n": 2,
            "prompt": ["a", "b c"],
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
}
SEVERAL = {"choices", "prompts", "counted-prompts"}


def post(it: Serving, kind: str, **headers: str) -> Call:
    path, fields = STREAMS[kind]
    asks = {"prompt": "Hello"} if path == "/v1/completions" else {"messages": [CHAT]}
    body = {"model": it.service.model.name, "stream": True} | asks | fields
    return it.call(path, body, **headers)


CHAT = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize("kind", STREAMS)
async def test_a_stream_that_is_over_is_shown_again_from_any_frame(kind: str) -> None:
    script = several if kind in SEVERAL else TEXT
    async with serving(script) as it:
        reply = await post(it, kind, **{"x-resumable": "true"}).over()
        whole = pieces(reply.body)
        assert whole[-1] == b"data: [DONE]\n\n"
        async with another(it) as other:
            for cut in range(len(whole)):
                again = resume(other, reply.headers["x-stream-id"], last_id(whole[:cut]))
                assert pieces((await again.over()).body) == whole[cut:]
            assert asked(it, ControlKind.ATTACH) == []  # there is nothing to wait for
        await it.settled()


@pytest.mark.parametrize("kind", STREAMS)
async def test_a_stream_goes_on_when_its_gateway_has_died(kind: str) -> None:
    """Cut in its midst, while tokens come, at a frame or within one."""
    script = several if kind in SEVERAL else TEXT
    async with serving(script) as it:
        whole = pieces((await post(it, kind, **{"x-resumable": "1"}).over()).body)
        for num_frames in (0, 1, 3, len(whole) - 2):
            it.pool.steps = num_frames > 0
            async with another(it, f"dies-{num_frames}") as dying:
                call = post(dying, kind, **{"x-resumable": "1"})
                await call.until(lambda call: bool(call.headers))
                await call.until(lambda call, n=num_frames: len(pieces(call.body)) >= n)
                call.task.cancel()
                await asyncio.wait([call.task])
                dying.service.router.controls._waiting.clear()  # it says no word
            had = pieces(call.body)[:num_frames]
            it.pool.steps = True
            rest = await resume(it, call.headers["x-stream-id"], last_id(had)).over()
            await it.settled()
            same = [unnamed(frame) for frame in had + pieces(rest.body)]
            assert same == [unnamed(frame) for frame in whole]


def unnamed(frame: bytes) -> bytes:
    """Without what tells two requests apart."""
    head, _, rest = frame.partition(b'"id":"')
    return head + rest.partition(b'"model"')[2]


async def test_the_id_is_told_before_the_first_token() -> None:
    async with serving() as it:
        it.pool.steps = False
        call = it.chat(stream=True)
        await call.until(lambda call: bool(call.headers))
        stream = call.headers["x-stream-id"]
        assert stream == f"chatcmpl-{call.headers['x-request-id']}"
        it.pool.steps = True
        assert {event["id"] for event in (await call.over()).events[:-1]} == {stream}
        whole = await it.complete().over()
        assert whole.headers["x-stream-id"] == whole.json()["id"]


async def test_what_was_not_streamed_is_shown_again_as_a_whole() -> None:
    async with serving() as it:
        call = it.chat()
        await it.until(lambda: bool(it.pool.running))
        stream = f"chatcmpl-{it.pool.submits[0].submission_id}"
        meanwhile = resume(it, stream, "3")
        reply = await call.over()
        assert (await meanwhile.over()).body == reply.body
        assert (await resume(it, stream).over()).body == reply.body


async def test_several_look_on_at_once_at_two_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is lost on the way, and one of them a long way behind."""
    monkeypatch.setattr("gateway.answer.MAX_READY", 16)
    async with serving() as it, another(it) as other:
        copies = iter(lambda: 0 if len(it.server.stream("control").ids) % 2 else 1, None)
        it.server.copies = lambda _gateway, _notice: next(copies)
        first = it.chat(stream=True)
        await first.until(lambda call: bool(call.body))
        stream = first.headers["x-stream-id"]
        calls = [resume(at, stream) for at in (it, other, other, it)]
        calls[1].reads.clear()
        replies = [await call.over() for call in (first, calls[0], calls[2], calls[3])]
        calls[1].reads.set()
        assert {reply.body for reply in replies} == {(await calls[1].over()).body}
        assert replies[0].texts == {0: TEXT}
        await it.settled()


async def test_an_error_is_shown_again_too() -> None:
    async with serving(lambda _request: ENDLESS) as it:
        calls = it.complete(stream=True, max_tokens=4000), it.complete(max_tokens=4000)
        await it.until(lambda: len(it.pool.running) == 2)
        for request in list(it.pool.running):
            it.pool.end(request, FinishReason.ERROR)
        for call in calls:
            reply = await call.over()
            stream = f"cmpl-{reply.headers['x-request-id']}"
            again = await resume(it, stream).over()
            assert (again.status, again.body) == (reply.status, reply.body)


# What is not there


async def test_what_nobody_knows_is_404() -> None:
    async with serving() as it:
        reply = await it.chat(stream=True).over()
        stream = reply.headers["x-stream-id"]
        wrong = ["x", "chatcmpl-", "chatcmpl-0000", stream[4:], f"cmpl{stream[8:]}", f"{stream}.0"]
        for name in [*wrong, "chatcmpl-*", "chatcmpl-" + "0" * 5000, stream.upper()]:
            error = error_of(await resume(it, name).over(), 404)
            assert error["code"] == "stream_not_found"
        await it.settled()
        it.server.expire()
        assert error_of(await resume(it, stream).over(), 404)["code"] == "stream_not_found"


async def test_what_no_scheduler_has_read_yet_is_waited_for() -> None:
    async with serving() as it:
        it.pool.admits = False
        call = it.chat(stream=True)
        await call.until(lambda call: bool(call.headers))
        nobody_leads(it)
        again = resume(it, call.headers["x-stream-id"])
        await asyncio.sleep(0.05)
        assert again.status == 0
        it.pool.admits = True
        assert (await again.over()).body == (await call.over()).body


async def test_an_answer_that_expires_while_it_is_read_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.answer.MAX_READY", 8)
    async with serving() as it:
        first = await it.chat(stream=True).over()
        call = resume(it, first.headers["x-stream-id"])
        call.reads.clear()
        await it.until(lambda: it.service.router.num_open == 1)
        await asyncio.sleep(0.05)
        it.server.expire()
        call.reads.set()
        reply = await call.over()
    assert "no longer stored" in reply.events[-1]["error"]["message"]
    assert pieces(reply.body)[:-1] == pieces(first.body)[: len(pieces(reply.body)) - 1]


@pytest.mark.parametrize("last_event", ["x", "1,2", "-1", "1.5"])
async def test_an_id_that_is_none_is_the_clients_fault(last_event: str) -> None:
    async with serving() as it:
        reply = await it.chat(stream=True).over()
        wrong = await resume(it, reply.headers["x-stream-id"], last_event).over()
        assert error_of(wrong, 400)["param"] == "Last-Event-ID"


async def test_a_stream_is_its_tenants_alone() -> None:
    async with serving(keys=KEYS) as it, another(it, keys=KEYS) as other:
        body = {"model": it.service.model.name, "prompt": "a", "stream": True}
        call = it.call("/v1/completions", body, authorization=f"Bearer {ALICE}")
        reply = await call.over()
        stream = reply.headers["x-stream-id"]
        hers = await resume(other, stream, authorization=f"Bearer {ALICE}").over()
        assert hers.body == reply.body
        his = await resume(other, stream, authorization=f"Bearer {BOB}").over()
        unknown = await resume(other, "cmpl-0", authorization=f"Bearer {BOB}").over()
        assert error_of(his, 404) == error_of(unknown, 404)
        assert error_of(await resume(other, stream).over(), 401)


# Who leaves


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("header", [{"x-resumable": "true"}, {"idempotency-key": "k"}])
async def test_a_client_that_may_come_back_is_detached(
    header: dict[str, str], stream: bool
) -> None:
    async with serving() as it:
        it.pool.steps = False
        body = {"model": it.service.model.name, "prompt": "a", "stream": stream}
        call = it.call("/v1/completions", body, **header)
        await it.until(lambda: bool(it.pool.running))
        await asyncio.sleep(0.05)
        call.leave()
        await call.over()
        await it.until(lambda: bool(asked(it, ControlKind.DETACH)))
        submission = it.pool.submits[0].submission_id
        assert it.service.router.num_open == 0
        it.pool.steps = True
        again = await resume(it, f"cmpl-{submission}").over()
        text = again.texts[0] if stream else again.json()["choices"][0]["text"]
        assert text == TEXT
        assert asked(it, ControlKind.CANCEL) == []
        assert set(asked(it, ControlKind.DETACH)) == {submission}


async def test_whoever_looks_on_is_detached_and_does_not_cancel() -> None:
    async with serving(lambda _request: ENDLESS) as it, another(it) as other:
        first = it.complete(stream=True)
        await first.until(lambda call: bool(call.body))
        onlooker = resume(other, first.headers["x-stream-id"])
        await onlooker.until(lambda call: bool(call.body))
        onlooker.leave()
        await onlooker.over()
        await it.until(lambda: bool(asked(it, ControlKind.DETACH)))
        length = len(first.body)
        await first.until(lambda call: len(call.body) > length + 1000)
        first.leave()
        await it.settled()
        assert len(asked(it, ControlKind.CANCEL)) == 1


async def test_the_last_one_of_a_gateway_says_goodbye() -> None:
    async with serving(lambda _request: ENDLESS) as it:
        first = it.complete(stream=True)
        await first.until(lambda call: bool(call.body))
        onlooker = resume(it, first.headers["x-stream-id"])
        await onlooker.until(lambda call: bool(call.body))
        first.leave()
        await first.over()
        length = len(onlooker.body)
        await onlooker.until(lambda call: len(call.body) > length + 1000)
        assert asked(it, ControlKind.CANCEL) == asked(it, ControlKind.DETACH) == []
        onlooker.leave()
        await it.settled()
        assert len(asked(it, ControlKind.DETACH)) == 1


@pytest.mark.parametrize("kind", ["stop", "prompts"])
async def test_who_left_comes_back_and_stops_where_a_stop_string_was_missed(kind: str) -> None:
    """Nobody looked when it came: what was computed behind it does not count."""
    async with serving(several if kind == "prompts" else TEXT) as it:
        whole = pieces((await post(it, kind, **{"x-resumable": "1"}).over()).body)
        it.pool.steps = False
        call = post(it, kind, **{"x-resumable": "1"})
        await it.until(lambda: bool(it.pool.running))
        call.leave()
        await call.over()
        it.pool.steps = True
        await it.settled()
        for request in it.pool.submits[-1].request_ids():
            assert it.pool.ends[request].kept == len(it.pool.script(request))
        again = await resume(it, call.headers["x-stream-id"]).over()
        assert [unnamed(f) for f in pieces(again.body)] == [unnamed(f) for f in whole]


# Under a key


@pytest.mark.parametrize("stream", [True, False])
async def test_a_key_asks_once_however_often_it_is_posted(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them comes at another second, and the one that counts says when it was."""
    seconds = itertools.count(1_800_000_000)
    now = SimpleNamespace(timestamp=lambda: next(seconds))
    monkeypatch.setattr("gateway.intake.datetime", SimpleNamespace(now=lambda _zone: now))
    async with serving() as it, another(it) as other:
        it.pool.admits = False
        calls = [keyed(at, "k", stream=stream) for at in (it, other, it, other)]
        await it.until(lambda: len(it.pool.submits) == 4)
        it.pool.admits = True
        replies = [await call.over() for call in calls]
        replies.append(await keyed(other, "k", stream=stream).over())
        await it.settled()
        assert {reply.status for reply in replies} == {200}
        assert len({reply.body for reply in replies}) == 1
        assert len({submit.submission_id for submit in it.pool.submits}) == 1
        counts = it.pool.submits[0].frame["created"]
        told = replies[0].events[0] if stream else replies[0].json()
        assert told["created"] == counts
        assert len(it.pool.ends) == 1
        assert asked(it, ControlKind.CANCEL) == []


async def test_a_key_is_joined_from_the_last_frame() -> None:
    async with serving() as it, another(it) as other:
        whole = pieces((await keyed(it, "k", stream=True).over()).body)
        for cut in (1, 5, len(whole) - 1):
            again = keyed(other, "k", last_id(whole[:cut]), stream=True)
            assert pieces((await again.over()).body) == whole[cut:]
        gone = await keyed(it, "other", "5", stream=True).over()
        assert error_of(gone, 404)["code"] == "stream_not_found"


async def test_a_key_with_another_body_is_422_at_any_time() -> None:
    async with serving() as it, another(it) as other:
        it.pool.admits = False
        calls = [keyed(it, "k", max_tokens=5), keyed(other, "k", max_tokens=6)]
        await it.until(lambda: len(it.server.stream("requests").ids) == 2)
        it.pool.admits = True
        replies = sorted([await call.over() for call in calls], key=lambda reply: reply.status)
        replies.append(await keyed(it, "k", max_tokens=7).over())
        assert [reply.status for reply in replies] == [200, 422, 422]
        error = error_of(replies[1], 422)
        assert error["code"] == "idempotency_key_reused"
        assert error["param"] == "Idempotency-Key"
        await it.settled()
        assert len(it.pool.ends) == 1


async def test_keys_are_the_tenants_own() -> None:
    async with serving(keys=KEYS) as it:
        body = {"model": it.service.model.name, "prompt": "a", "user": "alice"}
        bodies = []
        for key in (ALICE, BOB, ALICE):
            headers = {"authorization": f"Bearer {key}", "idempotency-key": "k"}
            bodies.append((await it.call("/v1/completions", body, **headers).over()).body)
        assert bodies[0] == bodies[2] != bodies[1]
    async with serving() as it:  # nobody has keys: whoever the body names
        named = [await keyed(it, "k", user=user).over() for user in ("a", "b", "a")]
        assert named[0].body == named[2].body != named[1].body


async def test_a_key_is_free_again_when_its_answer_has_expired() -> None:
    async with serving() as it:
        first = await keyed(it, "k").over()
        await it.settled()
        it.server.expire()
        second = await keyed(it, "k", max_tokens=3).over()
        assert second.status == 200
        assert second.body != first.body
        assert second.headers["x-request-id"] == first.headers["x-request-id"]


async def test_who_joins_is_not_refused_when_the_line_is_full() -> None:
    async with serving(lambda _request: ENDLESS, max_queue=1) as it:
        first = keyed(it, "k", stream=True)
        await first.until(lambda call: bool(call.body))
        await it.service.monitor.poll()
        assert (await keyed(it, "other", stream=True).over()).status == 429
        second = keyed(it, "k", stream=True)
        await second.until(lambda call: bool(call.body))
        for call in (first, second):
            call.leave()
            await call.over()
        for request in list(it.pool.running):
            it.pool.end(request, FinishReason.STOP)
        await it.settled()


async def test_without_a_scheduler_what_is_finished_is_shown_still() -> None:
    async with serving() as it:
        first = await keyed(it, "k").over()
        nobody_leads(it)
        assert (await keyed(it, "k").over()).body == first.body
        assert error_of(await keyed(it, "new").over(), 503)["code"] == "no_scheduler"


async def test_what_nobody_takes_up_is_503_and_may_be_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "ACCEPT_SECONDS", 0.05)
    async with serving() as it:
        it.pool.admits = False
        assert error_of(await keyed(it, "k").over(), 503)["code"] == "no_scheduler"
        it.pool.admits = True
        await it.until(lambda: bool(it.pool.ends))
        assert (await keyed(it, "k").over()).json()["choices"][0]["text"] == TEXT
        assert asked(it, ControlKind.CANCEL) == []


@pytest.mark.parametrize(
    "headers",
    [
        {"idempotency-key": ""},
        {"idempotency-key": "x" * 256},
        {"idempotency-key": "a\tb"},
        {"x-resumable": "perhaps"},
    ],
)
async def test_headers_that_mean_nothing_are_the_clients_fault(headers: dict[str, str]) -> None:
    async with serving() as it:
        body = {"model": it.service.model.name, "prompt": "a"}
        reply = await it.call("/v1/completions", body, **headers).over()
        assert error_of(reply, 400)["code"] == "invalid_header"
        assert it.pool.submits == []


async def test_what_is_shown_again_is_not_counted_again() -> None:
    async with serving() as it:
        reply = await keyed(it, "k", stream=True).over()
        await keyed(it, "k", stream=True).over()
        await resume(it, reply.headers["x-stream-id"]).over()
        lines = (await it.get("/metrics")).body.decode().split("\n")
    (counted,) = [line for line in lines if line.startswith("vllm:generation_tokens_total")]
    assert float(counted.rpartition(" ")[2]) == len(tokens_of(TEXT))
