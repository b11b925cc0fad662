"""Frames say what the tokens say, however they arrive and whoever shows them."""

import asyncio
from typing import Any

import httpx
import openai
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.messages import Ended, FinishReason, RequestId, SubmissionId
from gateway.errors import ApiError
from gateway.frames import Frames, Head

VOCABULARY = [b"a", b"b", b"<", b"\xf0\x9f", b"\x98\x80", b" 0", b"", b"<b"]
TOKENS = st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=12)
SUBMISSION = SubmissionId("s1")


def head(**more: Any) -> Head:
    values = {"chat": True, "model": "m", "created": 7, "num_choices": 1, "n": 1}
    return Head(**values | {"num_prompt_tokens": 3, "stream": True} | more)


def frames_of(given_head: Head) -> Frames:
    frame = orjson.loads(orjson.dumps(given_head.to_frame()))  # as it comes back from Redis
    return Frames(SUBMISSION, frame, VOCABULARY.__getitem__)


def ended(kept: int, reason: FinishReason = FinishReason.STOP, **more: Any) -> Ended:
    return Ended(RequestId("s1.0"), kept, reason, **more)


def events(stream: bytes) -> list[tuple[str, Any]]:
    """(id, data) of each SSE event."""
    parsed = []
    for block in stream.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        data = fields["data"]
        parsed.append((fields.get("id", ""), data if data == "[DONE]" else orjson.loads(data)))
    return parsed


def text_of(stream: bytes) -> str:
    deltas = [data["choices"][0]["delta"] for _, data in events(stream) if data["choices"]]
    return "".join(delta.get("content", "") for delta in deltas)


def test_a_chat_stream_has_the_shape_that_clients_expect() -> None:
    frames = frames_of(head(include_usage=True))
    stream = frames.feed(0, [0]) + frames.feed(0, [3]) + frames.feed(0, [4, 1, 6])
    stream += frames.end(0, ended(5, cached_tokens=2)) + frames.done()
    *chunks, usage, done = events(stream)
    assert [(id_, data["choices"][0]["delta"]) for id_, data in chunks] == [
        ("1", {"role": "assistant", "content": "a"}),
        ("5", {"content": "😀b"}),
        ("5", {}),
    ]
    assert [data["choices"][0]["finish_reason"] for _, data in chunks] == [None, None, "stop"]
    assert all(data["usage"] is None for _, data in chunks)
    assert usage[1]["choices"] == []
    assert usage[1]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert done[1] == "[DONE]"
    for _, data in [*chunks, usage]:
        openai.types.chat.ChatCompletionChunk.model_validate(data, strict=True)


def test_a_completion_stream_has_the_shape_that_clients_expect() -> None:
    frames = frames_of(head(chat=False))
    stream = frames.feed(0, [0]) + frames.end(0, ended(1, FinishReason.LENGTH)) + frames.done()
    *chunks, done = events(stream)
    assert [data["choices"][0]["text"] for _, data in chunks] == ["a", ""]
    assert chunks[-1][1]["choices"][0]["finish_reason"] == "length"
    assert "usage" not in chunks[0][1]
    assert done[1] == "[DONE]"
    for _, data in chunks:
        assert data["id"] == "cmpl-s1"
        assert data["object"] == "text_completion"


@pytest.mark.parametrize("chat", [True, False])
def test_a_whole_response_has_the_shape_that_clients_expect(chat: bool) -> None:
    frames = frames_of(head(chat=chat, stream=False, num_choices=4, n=2))
    for choice in range(4):
        assert frames.feed(choice, [choice]) == b""
        cached = 2 if choice % 2 == 0 else 3  # a prompt's other choices find it cached
        assert not frames.finished
        assert frames.end(choice, ended(1, FinishReason.LENGTH, cached_tokens=cached)) == b""
    body = orjson.loads(frames.response())
    kind = openai.types.chat.ChatCompletion if chat else openai.types.Completion
    answers = [
        answer["message"]["content"] if chat else answer["text"] for answer in body["choices"]
    ]
    assert answers == ["a", "b", "<", "\ufffd"]
    assert [answer["index"] for answer in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["completion_tokens"] == 4
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    kind.model_validate(body)


def test_a_stop_string_wins_over_the_end_of_the_scheduler() -> None:
    for reason in FinishReason:
        frames = frames_of(head(stop=("<b",), include_usage=True))
        stream = frames.feed(0, [0, 2, 1, 0])
        assert frames.stopped(0) == 3
        stream += frames.feed(0, [0]) + frames.end(0, ended(5, reason)) + frames.done()
        assert text_of(stream[: stream.index(b"data: [DONE]")]) == "a"
        *_, last, usage, _ = events(stream)
        assert last[0] == "3"
        assert last[1]["choices"][0]["finish_reason"] == "stop"
        assert usage[1]["usage"]["completion_tokens"] == 3


def test_held_text_comes_out_at_the_end() -> None:
    frames = frames_of(head(stop=("<bb",)))
    assert frames.feed(0, [7]) == b""
    end = events(frames.end(0, ended(1, FinishReason.LENGTH)))
    assert [data["choices"][0]["delta"] for _, data in end] == [
        {"role": "assistant", "content": "<b"},
        {},
    ]
    assert frames.end(0, ended(1, FinishReason.LENGTH)) == b""


def test_an_end_token_with_a_text_is_counted_and_not_shown() -> None:
    frames = frames_of(head(hidden=(1,), stop=(), include_usage=True))
    stream = frames.feed(0, [0, 1]) + frames.end(0, ended(2))
    assert text_of(stream) == "a"
    assert frames.usage()["completion_tokens"] == 2


def test_an_empty_answer_still_tells_its_role() -> None:
    (event,) = events(frames_of(head()).end(0, ended(0)))
    assert event[1]["choices"][0]["delta"] == {"role": "assistant"}


def test_ids_count_the_tokens_of_every_choice() -> None:
    frames = frames_of(head(num_choices=2, n=2))
    assert [events(frames.feed(choice, [0, 0][: choice + 1]))[0][0] for choice in (0, 1)] == [
        "1,0",
        "1,2",
    ]


@given(TOKENS, st.data())
def test_a_resumed_stream_goes_on_where_the_client_was(tokens: list[int], data: Any) -> None:
    """From any id of any stream, another gateway shows exactly the text that is missing."""
    given_head = head(stop=("<b ", "aa"))
    first = frames_of(given_head)
    shown, resume_at = "", data.draw(st.integers(0, len(tokens)))
    position = 0
    for token in tokens[:resume_at]:
        frame = first.feed(0, [token])
        if frame:
            shown += text_of(frame)
            position = int(events(frame)[0][0])
    second = frames_of(given_head)
    second.skip(0, tokens[:position])
    rest = second.feed(0, tokens[position:]) + second.end(0, ended(len(tokens)))
    whole = frames_of(given_head)
    complete = whole.feed(0, tokens) + whole.end(0, ended(len(tokens)))
    assert shown + text_of(rest) == text_of(complete)
    assert events(rest)[-1] == events(complete)[-1]


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (FinishReason.CANCELLED, 499),
        (FinishReason.DEADLINE, 504),
        (FinishReason.ERROR, 500),
        (FinishReason.REFUSED, 400),
        (FinishReason.OVERLOADED, 429),
    ],
)
def test_a_failed_choice_is_an_error_that_says_why(reason: FinishReason, status: int) -> None:
    end = ended(
        1, reason, error="" if reason in {FinishReason.CANCELLED, FinishReason.DEADLINE} else "why"
    )
    frames = frames_of(head())
    stream = frames.feed(0, [0]) + frames.end(0, end)
    error = events(stream)[-1][1]["error"]
    assert error["code"]
    assert error["message"].endswith(("why.", "passed.", "cancelled."))
    whole = frames_of(head(stream=False))
    whole.feed(0, [0])
    whole.end(0, end)
    with pytest.raises(ApiError) as caught:
        whole.response()
    assert caught.value.status == status


def test_the_openai_client_raises_at_an_error_event() -> None:
    frames = frames_of(head())
    stream = frames.feed(0, [0]) + frames.end(0, ended(1, FinishReason.ERROR)) + frames.done()

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=stream)

    async def read() -> None:
        transport = httpx.MockTransport(answer)
        async with (
            httpx.AsyncClient(transport=transport) as http,
            openai.AsyncOpenAI(base_url="http://x/v1", api_key="k", http_client=http) as client,
        ):
            chunks = await client.chat.completions.create(model="m", messages=[], stream=True)
            async for _ in chunks:
                pass

    with pytest.raises(openai.APIError, match="failed"):
        asyncio.run(read())
