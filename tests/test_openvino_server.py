"""The server in front of OpenVINO, with a pipeline that counts in place of the real one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message

from cli.bench.stream import TokenStream
from common.gguf_tokenizer import build
from common.model_files import EMBEDDED, locate
from tests.bench.openvino_server import FAILED, Batch, Model, News, Text, Wanted, make_app

LIMIT_SECONDS = 20.0
FACE = "😀"  # of several tokens, none of which is a character


@dataclass
class Running:
    wanted: Wanted
    unread: list[int] = field(default_factory=list)
    count: int = 0
    is_cancelled: bool = False

    @property
    def is_over(self) -> bool:
        return self.is_cancelled or self.count >= self.wanted.max_tokens


class Counting:
    """Answers with the prompt over and over, a token of each request in a step."""

    def __init__(self) -> None:
        self.running: list[Running] = []
        self.num_together: list[int] = []  # requests of each step
        self.fails = False

    def add(self, _number: int, wanted: Wanted) -> Running:
        self.running.append(Running(wanted))
        return self.running[-1]

    def is_busy(self) -> bool:
        return any(not each.is_over for each in self.running)

    def step(self) -> None:
        active = [each for each in self.running if not each.is_over]
        self.num_together.append(len(active))
        for each in active:
            each.unread.append(each.wanted.prompt[each.count % len(each.wanted.prompt)])
            each.count += 1

    def read(self, handle: Running) -> News:
        tokens, handle.unread = handle.unread, []
        if self.fails:
            return [], FAILED
        return tokens, "length" if handle.is_over else ""

    def cancel(self, handle: Running) -> None:
        handle.is_cancelled = True


@pytest.fixture(scope="module")
def model() -> Model:
    return Model("m", build(locate(EMBEDDED, Path())), 100)


@pytest.fixture
def pipeline() -> Counting:
    return Counting()


@asynccontextmanager
async def client(pipeline: Counting, model: Model) -> AsyncIterator[httpx.AsyncClient]:
    batch = Batch(pipeline)
    transport = httpx.ASGITransport(make_app(batch, model))
    async with (
        asyncio.timeout(LIMIT_SECONDS),
        asyncio.TaskGroup() as tasks,
        httpx.AsyncClient(transport=transport, base_url="http://peer") as asking,
    ):
        steps = tasks.create_task(batch.run())
        yield asking
        steps.cancel()


def stream_of(answer: httpx.Response) -> TokenStream:
    stream = TokenStream(lambda: 0.0, keeps_frames=True)
    stream.feed(answer.content)
    stream.close()
    return stream


async def test_it_says_what_it_is(pipeline: Counting, model: Model) -> None:
    async with client(pipeline, model) as asking:
        assert (await asking.get("/health")).status_code == 200
        assert (await asking.get("/v1/models")).json()["data"][0]["id"] == "m"


async def test_a_stream_has_a_frame_for_each_token(pipeline: Counting, model: Model) -> None:
    prompt = model.tokenizer.encode(" one two three").ids
    body = {"prompt": prompt, "max_tokens": 7, "stream": True, "ignore_eos": True}
    async with client(pipeline, model) as asking:
        answer = await asking.post("/v1/completions", json=body)
    stream = stream_of(answer)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (stream.error, stream.is_done, len(stream.times)) == ("", True, 7)
    assert stream.text() == " one two three one two three one"
    assert stream.usage == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
    assert b'"finish_reason": "length"' in answer.content
    assert pipeline.running[0].wanted.ignore_eos
    assert not pipeline.running[0].is_cancelled


async def test_a_text_is_answered_in_one_piece(pipeline: Counting, model: Model) -> None:
    async with client(pipeline, model) as asking:
        answer = await asking.post("/v1/completions", json={"prompt": "a b", "temperature": 0.0})
    found = answer.json()
    assert found["choices"][0]["text"] == "a b" * 8
    assert found["usage"]["completion_tokens"] == 16
    assert not pipeline.running[0].wanted.ignore_eos


async def test_requests_are_computed_together(pipeline: Counting, model: Model) -> None:
    body = {"prompt": "a", "max_tokens": 50}
    async with client(pipeline, model) as asking, asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(asking.post("/v1/completions", json=body))
    assert max(pipeline.num_together) == 5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "Expecting"),
        (b"[]", "object"),
        (b'{"prompt": []}', "not empty"),
        (b'{"prompt": ""}', "not empty"),
        (b'{"prompt": [true]}', "below 49152"),
        (b'{"prompt": [49152]}', "below 49152"),
        (b'{"prompt": "a", "max_tokens": 0}', "from 1 to 99"),
        (b'{"prompt": "a", "max_tokens": 100}', "from 1 to 99"),
        (b'{"prompt": "a", "temperature": 0.5}', "greedy"),
    ],
)
async def test_what_cannot_be_had_is_refused(
    pipeline: Counting, model: Model, body: bytes, message: str
) -> None:
    async with client(pipeline, model) as asking:
        answer = await asking.post("/v1/completions", content=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert pipeline.running == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_is_no_answer(pipeline: Counting, model: Model, stream: bool) -> None:
    pipeline.fails = True
    async with client(pipeline, model) as asking:
        answer = await asking.post("/v1/completions", json={"prompt": "a", "stream": stream})
    assert b"error" in answer.content
    assert b"choices" not in answer.content
    assert b"[DONE]" not in answer.content


@pytest.mark.parametrize("stream", [False, True])
async def test_whoever_leaves_is_computed_no_further(
    pipeline: Counting, model: Model, stream: bool
) -> None:
    """The server's side of a connection that breaks off after three steps."""
    batch = Batch(pipeline)
    body = json.dumps({"prompt": "a", "max_tokens": 90, "stream": stream}).encode()
    asked: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if asked:
            return asked.pop()
        while len(pipeline.num_together) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(_message: Message) -> None:
        await asyncio.sleep(0)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/completions"}
    scope |= {"headers": [], "query_string": b"", "asgi": {"spec_version": "2.3"}}
    async with asyncio.timeout(LIMIT_SECONDS), asyncio.TaskGroup() as tasks:
        steps = tasks.create_task(batch.run())
        await make_app(batch, model)(scope, receive, send)
        steps.cancel()
    assert pipeline.running[0].is_cancelled
    assert 3 <= pipeline.running[0].count < 30


def test_a_character_waits_for_its_last_byte(model: Model) -> None:
    tokens = model.tokenizer.encode(f"a{FACE}b{FACE}").ids
    text = Text(model.tokenizer)
    pieces = [text.feed([token]) for token in tokens]
    assert "".join(pieces) == f"a{FACE}b{FACE}"
    assert "" in pieces
    assert text.rest() == ""
    assert all("\ufffd" not in piece for piece in pieces)


def test_half_a_character_at_the_end_is_shown_as_such(model: Model) -> None:
    text = Text(model.tokenizer)
    assert text.feed(model.tokenizer.encode(FACE).ids[:1]) == ""
    assert text.rest() == "\ufffd"
