"""The routes, in memory: what clients are answered, and what the pool is asked for."""

import asyncio
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from common.bus import UnavailableError
from common.memory_bus import MemoryBus
from common.messages import ControlKind, FinishReason, Submit, WorkerHello, WorkerId
from gateway import answer, completions, exchange, token_router
from tests.gateway.serving import TEXT, model, requests_of, serving, tokens_of


def error_of(reply: Any, status: int) -> dict[str, Any]:
    """The error object, whose shape is always the same."""
    assert reply.status == status, reply
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert body["error"]["type"]
    return dict(body["error"])


# What is answered


async def test_chat_streams_the_text_in_frames() -> None:
    async with serving() as it:
        reply = await it.chat(stream=True).over()
        await it.settled()
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.texts == {0: TEXT}
    assert reply.events[-1] == "[DONE]"
    assert reply.events[-2]["choices"][0]["finish_reason"] == "stop"
    submission = reply.headers["x-request-id"]
    assert {event["id"] for event in reply.events[:-1]} == {f"chatcmpl-{submission}"}
    assert reply.body.startswith(b"id: 1\n")
    assert it.pool.controls == []


async def test_chat_whole() -> None:
    async with serving() as it:
        reply = await it.chat().over()
    body = reply.json()
    assert reply.status == 200
    assert body["choices"][0]["message"]["content"] == TEXT
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["id"] == f"chatcmpl-{reply.headers['x-request-id']}"
    assert body["usage"]["completion_tokens"] == len(tokens_of(TEXT))
    assert body["usage"]["prompt_tokens"] == len(it.pool.submits[0].prompts[0])
    assert it.pool.controls == []


async def test_completion_streams_usage_once_if_asked() -> None:
    async with serving() as it:
        options = {"include_usage": True}
        reply = await it.complete(stream=True, stream_options=options).over()
    usages = [e["usage"] for e in reply.events[:-1] if e.get("usage")]
    assert [usage["completion_tokens"] for usage in usages] == [len(tokens_of(TEXT))]
    assert reply.texts == {0: TEXT}


@pytest.mark.parametrize("chat", [True, False])
async def test_usage_comes_with_every_chunk_if_asked(chat: bool) -> None:
    async with serving() as it:
        options = {"continuous_usage_stats": True}
        ask = it.chat if chat else it.complete
        reply = await ask(stream=True, stream_options=options).over()
        num_prompt = len(it.pool.submits[0].prompts[0])
    usages = [event["usage"] for event in reply.events[:-1]]
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == len(tokens_of(TEXT))
    assert all(
        usage == {**usage, "prompt_tokens": num_prompt, "total_tokens": num_prompt + count}
        for usage, count in zip(usages, counts, strict=True)
    )
    assert reply.events[-2]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [True, False])
async def test_several_prompts_and_choices_do_not_mix(stream: bool) -> None:
    def script(request: str) -> list[int]:
        return tokens_of(f"This is choice {request.rpartition('.')[2]}, and no other.")

    async with serving(script) as it:
        reply = await it.complete(prompt=["a", "b", "c d"], n=2, stream=stream).over()
        await it.settled()
    if stream:
        texts = reply.texts
    else:
        texts = {choice["index"]: choice["text"] for choice in reply.json()["choices"]}
    assert texts == {i: f"This is choice {i}, and no other." for i in range(6)}


async def test_length_is_told() -> None:
    async with serving() as it:
        reply = await it.complete(max_tokens=3).over()
    assert reply.json()["choices"][0]["finish_reason"] == "length"
    assert reply.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_string_ends_the_request_once(stream: bool) -> None:
    async with serving() as it:
        reply = await it.complete(stop=["word after"], stream=stream).over()
        await it.settled()
    text = reply.texts[0] if stream else reply.json()["choices"][0]["text"]
    assert text == TEXT[: TEXT.index("word after")]
    kinds = [control.kind for control in it.pool.controls]
    assert kinds == [ControlKind.STOP]
    (end,) = it.pool.ends.values()
    assert it.pool.controls[0].kept == end.kept < len(tokens_of(TEXT))


async def test_what_a_submit_says() -> None:
    async with serving(request_timeout_seconds=30.0) as it:
        await it.complete(user="alice", seed=5, n=2, max_tokens=4, priority=3).over()
        await it.complete().over()
    first, second = it.pool.submits
    assert (first.tenant, first.sampling.seed, first.n, first.priority) == ("alice", 5, 2, 3)
    assert (first.gateway, first.deadline_seconds, len(first.digest)) == ("g0", 30.0, 64)
    assert second.tenant == "anonymous"
    assert second.submission_id != first.submission_id
    assert second.ending.max_tokens == 8192 - len(second.prompts[0])


async def test_models_version_health_ready_metrics() -> None:
    async with serving() as it:
        models = (await it.get("/v1/models")).json()
        one = (await it.get(f"/v1/models/{model().name}")).json()
        unknown = await it.get("/v1/models/a/b")
        assert (await it.get("/version")).json()["version"]
        assert (await it.get("/health")).status == 200
        assert (await it.get("/ready")).status == 200
        metrics = await it.get("/metrics")
    assert models["data"] == [one]
    assert one["id"] == model().name
    assert one["max_model_len"] == 8192
    assert error_of(unknown, 404)["code"] == "model_not_found"
    assert metrics.headers["content-type"].startswith("text/plain")


# What goes wrong


BAD_BODIES: list[tuple[Any, int]] = [
    (b"{", 400),
    (b"", 400),
    (b"[]", 400),
    (b"\xff", 400),
    (b"[" * 100_000, 400),
    (b'{"a":' * 5000 + b"1" + b"}" * 5000, 400),
    ({"model": "other"}, 400),
    ({"model": "other", "prompt": "a"}, 404),
    ({"prompt": "a", "max_tokens": 0}, 400),
    ({"prompt": "a", "temperature": 9}, 400),
    ({"prompt": "a", "unknown": 1}, 400),
    ({"prompt": "a", "logprobs": 3}, 400),
    ({"prompt": [10**9]}, 400),
    ({"prompt": "a", "n": 1000}, 400),
    ({"prompt": "a", "max_tokens": 9000}, 400),
    ({"prompt": "a " * 9000}, 400),
]


@pytest.mark.parametrize(("body", "status"), BAD_BODIES, ids=lambda value: str(value)[:30])
async def test_bad_bodies_are_the_clients_fault(body: Any, status: int) -> None:
    if isinstance(body, dict):
        body = {"model": model().name} | body
    async with serving() as it:
        for path in ("/v1/completions", "/v1/chat/completions"):
            reply = await it.call(path, body).over()
            assert error_of(reply, reply.status)["type"] == "invalid_request_error"
            assert reply.status in {400, status}
            assert len(reply.headers["x-request-id"]) == 24
        assert it.pool.submits == []


async def test_a_request_that_never_fits_is_told_the_numbers() -> None:
    async with serving() as it:
        it.pool.max_request_tokens = 8192
        reply = await it.complete(prompt="a " * 3000, max_tokens=6000).over()
    error = error_of(reply, 400)
    assert error["code"] == "context_length_exceeded"
    assert "8192" in error["message"]


async def test_workers_bound_what_fits() -> None:
    async with serving() as it:
        progress = it.service.monitor.progress
        small = WorkerHello(WorkerId("w0"), "m", "cpu", 4, 16, 64, 16, 4)
        progress.see(progress.status, {small.worker_id: small}, 0, time.monotonic())
        reply = await it.complete(max_tokens=100).over()
    assert "64" in error_of(reply, 400)["message"]


async def test_a_body_over_the_limit_is_not_read_to_its_end() -> None:
    async with serving(max_body_bytes=1024) as it:
        parts = [b" " * 600, b" " * 600, b"never read"]
        call = it.call("/v1/completions", b"")
        call._parts = list(parts)
        error_of(await call.over(), 413)
        assert call._parts == [b"never read"]
        announced = it.call("/v1/completions", b"{}", **{"content-length": "4096"})
        error_of(await announced.over(), 413)
        assert it.service.intake._held_bytes == 0


async def test_routes_and_types_that_are_not_there() -> None:
    async with serving() as it:
        error_of(await it.get("/v1/nothing"), 404)
        error_of(await it.get("/"), 404)
        error_of(await it.get("/v1/models/"), 404)
        wrong = await it.get("/v1/completions")
        assert wrong.headers["allow"] == "POST"
        error_of(wrong, 405)
        error_of(await it.call("/health", b"", "DELETE").over(), 405)
        plain = it.call("/v1/completions", b"{}", **{"content-type": "text/plain"})
        error_of(await plain.over(), 415)


async def test_a_bug_shows_no_text_of_its_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret")

    async with serving() as it:
        monkeypatch.setattr(completions, "refuse", broken)
        call = it.complete()
        with pytest.raises(RuntimeError):
            await call.task
    error_of(call.reply(), 500)
    assert b"secret" not in call.body


@pytest.mark.parametrize(
    ("reason", "status"),
    [(FinishReason.ERROR, 500), (FinishReason.DEADLINE, 504), (FinishReason.CANCELLED, 499)],
)
@pytest.mark.parametrize("failing", ["0", "01"])
@pytest.mark.parametrize("n", [1, 2])
async def test_a_request_that_fails_ends_unlike_one_that_succeeds(
    reason: FinishReason, status: int, n: int, failing: str
) -> None:
    async with serving(lambda _request: [1234] * 5000) as it:
        whole, stream = it.chat(n=n), it.chat(n=n, stream=True)
        await it.until(lambda: len(it.pool.running) == 2 * n)
        await stream.until(lambda call: bool(call.body))
        stream.reads.clear()  # so that it finds all ends at once
        failed = [request for request in requests_of(it) if request[-1] in failing]
        for request in failed:
            it.pool.end(request, reason)
        await it.until(lambda: len(it.pool.ends) >= len(failed))
        await asyncio.sleep(0.02)
        stream.reads.set()
        error_of(await whole.over(), status)
        reply = await stream.over()
        await it.settled()  # the other choice is cancelled
    assert reply.status == 200
    assert set(reply.events[-1]) == {"error"}
    assert "[DONE]" not in reply.events
    assert sum("error" in event for event in reply.events) == 1


# Clients that leave


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding"])
async def test_a_client_that_leaves_is_cancelled(state: str, stream: bool) -> None:
    async with serving(lambda _request: [1234] * 5000) as it:
        it.pool.admits = state != "waiting"
        it.pool.steps = state == "decoding"
        call = it.complete(stream=stream)
        await it.until(lambda: bool(it.pool.submits))
        if state == "decoding":
            await it.until(lambda: any(len(r.tokens) > 3 for r in it.pool.running.values()))
        call.leave()
        await call.over()
        it.pool.admits = True
        await it.settled()
        assert [control.kind for control in it.pool.controls] == [ControlKind.CANCEL]
        assert it.pool.controls[0].target == it.pool.submits[0].submission_id
        assert it.service.router.num_open == 0
        assert not it.pool.running


async def test_a_client_that_leaves_before_its_body_is_whole() -> None:
    async with serving() as it:
        call = it.call("/v1/completions", b"")
        call._parts = []
        await asyncio.sleep(0.01)
        call.leave()
        await call.over()
        assert call.status == 0
        assert it.pool.submits == []


async def test_cancelling_the_task_cancels_the_request() -> None:
    async with serving(lambda _request: [1234] * 5000) as it:
        call = it.complete(stream=True)
        await call.until(lambda call: len(call.body) > 500)
        call.task.cancel()
        await asyncio.wait([call.task])
        await it.settled()
        assert [control.kind for control in it.pool.controls] == [ControlKind.CANCEL]


async def test_silence_is_broken() -> None:
    async with serving(keep_alive_seconds=0.05) as it:
        it.pool.steps = False
        call = it.chat(stream=True)
        await call.until(lambda call: call.body.count(exchange.KEEP_ALIVE) == 3)
        it.pool.steps = True
        reply = await call.over()
    assert reply.texts == {0: TEXT}


async def test_a_client_that_reads_slowly_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "MAX_READY", 8)
    monkeypatch.setattr(answer, "MAX_AHEAD", 2)
    monkeypatch.setattr(token_router, "WATCH_SECONDS", 0.01)
    async with serving() as it:
        call = it.chat(stream=True)
        await call.until(lambda call: bool(call.body))
        call.reads.clear()
        await it.until(lambda: bool(it.pool.ends))
        call.reads.set()
        assert (await call.over()).texts == {0: TEXT}


# What is not taken


async def test_without_a_scheduler_503() -> None:
    async with serving(pool=False) as it:
        reply = await it.complete().over()
        assert (await it.get("/ready")).status == 503
    assert error_of(reply, 503)["code"] == "no_scheduler"
    assert int(reply.headers["retry-after"]) >= 1
    assert it.server.stream("requests").ids == []


async def test_without_a_worker_it_waits() -> None:
    async with serving() as it:
        it.service.monitor.progress.workers = {}
        it.server.hash("workers").clear()
        assert (await it.get("/ready")).status == 503
        assert (await it.complete().over()).status == 200


async def test_a_full_line_is_429_with_the_wait() -> None:
    async with serving(lambda _request: [1234] * 5000, max_queue=2) as it:
        calls = [it.complete(stream=True) for _ in range(2)]
        await it.until(lambda: len(it.pool.submits) == 2)
        refused = await it.complete().over()
        for call in calls:
            call.leave()
        await it.settled()
    assert error_of(refused, 429)["type"] == "rate_limit_error"
    assert "predicted wait" in error_of(refused, 429)["message"]
    assert int(refused.headers["retry-after"]) >= 1


async def test_a_full_server_is_503() -> None:
    async with serving() as it:
        it.server.full = True
        reply = await it.complete().over()
        assert error_of(reply, 503)["code"] == "no_memory"
        assert "retry-after" in reply.headers


async def test_a_submit_without_an_answer_is_503_and_cancelled() -> None:
    class Deaf(MemoryBus):
        async def submit(self, submit: Submit) -> None:
            await super().submit(submit)  # it lands, and nobody is told
            raise UnavailableError("no answer")

    async with serving(bus=Deaf) as it:
        it.pool.admits = False
        error_of(await it.complete().over(), 503)
        await it.until(lambda: bool(it.pool.controls))
        it.pool.admits = True
        await it.settled()
        assert it.pool.controls[0].kind is ControlKind.CANCEL


# The event loop


def clocks() -> tuple[float, float]:
    """Two clocks, in seconds, that a thread which keeps the loop waiting cannot but move.

    CPU time of the process, and wall time without that in which the loop could run but other
    processes had the machine. The smaller of their gaps is no other process's doing.
    """
    waited = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return time.process_time(), time.monotonic() - waited


async def longest_gap(over: asyncio.Event) -> float:
    """Of a task that wants to run every millisecond; seconds."""
    longest, last = 0.0, clocks()
    while not over.is_set():
        await asyncio.sleep(0.001)
        now = clocks()
        longest = max(longest, min(now[0] - last[0], now[1] - last[1]))
        last = now
    return longest


WORDS = "The quick brown fox jumps over the lazy dog, says the café. "
HUGE = WORDS * (5_000_000 // len(WORDS))
HUGE_BODIES = {
    "completion": ("/v1/completions", {"prompt": HUGE}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": HUGE}]}),
    "tokens": ("/v1/completions", {"prompt": [1234] * 390_000}),
    "too many tokens": ("/v1/completions", {"prompt": [1234] * 1_000_000}),
}


@pytest.mark.parametrize("kind", HUGE_BODIES)
async def test_a_huge_prompt_does_not_freeze_the_loop(kind: str) -> None:
    path, fields = HUGE_BODIES[kind]
    body = orjson.dumps({"model": model().name} | fields)
    gaps: list[float] = []
    async with serving() as it:
        while len(gaps) < 3 and min(gaps, default=1.0) >= 0.05:  # a busy machine gets three tries
            over = asyncio.Event()
            gap = asyncio.ensure_future(longest_gap(over))
            call = it.call(path, b"")
            call._parts = [body[i : i + 65536] for i in range(0, len(body), 65536)]
            error_of(await call.over(), 400)
            over.set()
            gaps.append(await gap)
    assert min(gaps) < 0.05


# The end


async def test_draining_lets_answers_end_and_then_cuts_them_off() -> None:
    async with serving(lambda _request: [1234] * 5000, drain_seconds=0.2) as it:
        stream, whole = it.complete(stream=True), it.complete()
        await it.until(lambda: len(it.pool.running) == 2)
        drain = asyncio.ensure_future(it.service.drain())
        await asyncio.sleep(0.01)
        assert (await it.get("/ready")).status == 503
        assert it.service.router.num_open == 2
        streamed = await stream.over()
        error = error_of(await whole.over(), 503)
        await drain
        await it.settled()
    assert error["code"] == "shutting_down"
    assert streamed.events[-1]["error"]["code"] == "shutting_down"


async def test_draining_ends_when_all_answers_have() -> None:
    async with serving(drain_seconds=10.0) as it:
        call = it.complete(stream=True)
        await call.until(lambda call: bool(call.body))
        await asyncio.wait_for(it.service.drain(), 5)
        assert (await call.over()).texts == {0: TEXT}


async def test_a_deadline_that_nobody_keeps_is_kept_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "DEADLINE_GRACE_SECONDS", 0.05)
    async with serving(request_timeout_seconds=0.1) as it:
        it.pool.steps = False
        error_of(await it.complete().over(), 504)
        it.pool.steps = True
        await it.settled()
        assert it.pool.controls[0].kind is ControlKind.CANCEL
