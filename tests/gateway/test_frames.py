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
from gateway import positions
from gateway.errors import ApiError, BadRequestError
from gateway.frames import Frames
from gateway.head import Head
from gateway.positions import Position

VOCABULARY = [b"a", b"b", b"<", b"\xf0\x9f", b"\x98\x80", b" 0", b"", b"<b"]
TOKENS = st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=12)
SUBMISSION = SubmissionId("s1")


def head(**more: Any) -> Head:
    values = {"chat": True, "model": "m", "created": 7, "num_choices": 1, "n": 1}
    return Head(**values | {"num_prompt_tokens": 3, "stream": True} | more)


def frames_of(given_head: Head, last_event: str = "") -> Frames:
    frame = orjson.loads(orjson.dumps(given_head.to_frame()))  # as it comes back from Redis
    after = positions.read(last_event, given_head.num_choices)
    return Frames(SUBMISSION, frame, VOCABULARY.__getitem__, after)


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
        ("3", {"content": "😀"}),
        ("4", {"content": "b"}),
        ("5.end", {}),
    ]
    assert [data["choices"][0]["finish_reason"] for _, data in chunks] == [
        *(None, None, None),
        "stop",
    ]
    assert all(data["usage"] is None for _, data in chunks)
    assert usage[0] == "5.end,usage"
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


def usages(stream: bytes) -> list[tuple[int, int, int]]:
    """Index of the choice (-1: of all), prompt and output tokens, of each chunk with a usage."""
    told = []
    for _, data in events(stream):
        if data != "[DONE]" and (usage := data["usage"]):
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            index = data["choices"][0]["index"] if data["choices"] else -1
            told.append((index, usage["prompt_tokens"], usage["completion_tokens"]))
    return told


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("include_usage", [True, False])
def test_every_chunk_has_the_usage_so_far_where_it_is_asked_for(
    chat: bool, include_usage: bool
) -> None:
    """Half a character and an end token make no chunk, but count."""
    frames = frames_of(
        head(chat=chat, usage_prompts=(3,), include_usage=include_usage, hidden=(1,))
    )
    stream = frames.feed(0, [0, 3]) + frames.feed(0, [4, 0, 1])
    stream += frames.end(0, ended(5, FinishReason.LENGTH)) + frames.done()
    last = [(-1, 3, 5)] if include_usage else []
    assert usages(stream) == [(0, 3, 1), (0, 3, 3), (0, 3, 4), (0, 3, 5), *last]
    chunk = openai.types.chat.ChatCompletionChunk if chat else openai.types.Completion
    for _, data in events(stream)[:-1]:
        if chat:  # the client's type of a completion knows no open one
            chunk.model_validate(data, strict=True)
    plain = frames_of(head(chat=chat, include_usage=True, hidden=(1,)))
    without = plain.feed(0, [0, 3, 4, 0, 1]) + plain.end(0, ended(5, FinishReason.LENGTH))
    told = [(id_, data | {"usage": None}) for id_, data in events(stream) if "choices" in data]
    assert told[: len(events(without))] == events(without)


def test_each_choice_counts_its_own_tokens_and_its_own_prompt() -> None:
    frames = frames_of(
        head(chat=False, num_choices=4, n=2, usage_prompts=(1, 2), stop=("b",), include_usage=True)
    )
    stream = frames.feed(0, [0, 0]) + frames.feed(3, [0, 1, 0])  # choice 3 stops at its second
    stream += frames.feed(2, [0]) + frames.feed(0, [0])
    for choice, kept in enumerate((3, 0, 1, 3)):
        stream += frames.end(choice, ended(kept, FinishReason.LENGTH))
    assert usages(stream + frames.done()) == [
        *[(0, 1, 1), (0, 1, 2), (3, 2, 1), (2, 2, 1), (0, 1, 3)],
        *[(0, 1, 3), (1, 1, 0), (2, 2, 1), (3, 2, 2)],
        (-1, 3, 6),
    ]


def test_what_is_not_kept_does_not_count_at_the_end() -> None:
    frames = frames_of(head(usage_prompts=(3,), include_usage=True))
    stream = frames.feed(0, [0, 0, 0]) + frames.end(0, ended(2, FinishReason.LENGTH))
    assert usages(stream + frames.done())[2:] == [(0, 3, 3), (0, 3, 2), (-1, 3, 2)]


def test_a_text_that_looks_like_a_usage_stays_a_text() -> None:
    given = head(usage_prompts=(3,), model='"usage":null}').to_frame()
    frames = Frames(SUBMISSION, given, [b'"usage":null}'].__getitem__)
    stream = frames.feed(0, [0]) + frames.end(0, ended(1))
    assert text_of(stream) == '"usage":null}'
    assert usages(stream) == [(0, 3, 1), (0, 3, 1)]


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
        assert last[0] == "3.end"
        assert last[1]["choices"][0]["finish_reason"] == "stop"
        assert usage[1]["usage"]["completion_tokens"] == 3


def test_held_text_comes_out_at_the_end() -> None:
    frames = frames_of(head(stop=("<bb",)))
    assert frames.feed(0, [7]) == b""
    end = events(frames.end(0, ended(1, FinishReason.LENGTH)))
    assert [data["choices"][0]["delta"] for _, data in end] == [
        {"role": "assistant", "content": "<b"},
    ]
    assert end[0][1]["choices"][0]["finish_reason"] == "length"
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
    shown = frames.feed(0, [0]) + frames.feed(1, [0, 0]) + frames.end(1, ended(2))
    shown += frames.feed(0, [0])
    assert [id_ for id_, _ in events(shown)] == ["1,0", "1,1", "1,2", "1,2.end", "2,2.end"]


def pieces(stream: bytes) -> list[bytes]:
    """The stream, cut behind every frame."""
    return [part + b"\n\n" for part in stream.split(b"\n\n")[:-1]]


def last_id(frames: list[bytes]) -> str:
    """What a client would send as `Last-Event-ID`."""
    ids = [id_ for frame in frames for id_, _ in events(frame) if id_]
    return ids[-1] if ids else ""


HEADS = st.builds(
    head,
    chat=st.booleans(),
    include_usage=st.booleans(),
    usage_prompts=st.sampled_from([(), (3,)]),
    stop=st.sampled_from([(), ("<b ", "aa"), ("b",)]),
    min_tokens=st.integers(0, 3),
    hidden=st.sampled_from([(), (1,)]),
)


@given(HEADS, TOKENS, st.data())
def test_a_stream_that_is_cut_behind_any_frame_goes_on_byte_for_byte(
    given_head: Head, tokens: list[int], data: Any
) -> None:
    """However the tokens come, at the gateway that began it and at the one that goes on."""
    end = ended(len(tokens), data.draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH])))

    def streamed(last_event: str = "") -> bytes:
        frames, left, shown = frames_of(given_head, last_event), tokens, b""
        while left:
            count = data.draw(st.integers(1, len(left)))
            shown, left = shown + frames.feed(0, left[:count]), left[count:]
        return shown + frames.end(0, end) + frames.done()

    whole = pieces(streamed())
    ids = [id_ for id_, _ in events(b"".join(whole)) if id_]
    assert len(set(ids)) == len(ids)
    for cut in range(len(whole)):
        assert pieces(streamed(last_id(whole[:cut]))) == whole[cut:]


@given(st.lists(TOKENS, min_size=2, max_size=3), st.data())
def test_each_choice_goes_on_byte_for_byte_whichever_is_ahead(
    answers: list[list[int]], data: Any
) -> None:
    """In any order: what is said of each choice is the same, and comes once."""
    num = len(answers)
    given_head = head(num_choices=num, n=num, include_usage=True, usage_prompts=(3,))

    def streamed(last_event: str = "") -> list[bytes]:
        frames = frames_of(given_head, last_event)
        moves = [index for index, tokens in enumerate(answers) for _ in range(len(tokens) + 1)]
        left = [list(tokens) for tokens in answers]
        shown = b""
        for index in data.draw(st.permutations(moves)):
            if left[index]:
                shown += frames.feed(index, [left[index].pop(0)])
            else:
                shown += frames.end(index, ended(len(answers[index])))
        return pieces(shown + frames.done())

    def told(stream: list[bytes]) -> dict[int, list[Any]]:
        by_choice: dict[int, list[Any]] = {}
        for _, event in events(b"".join(stream)):
            for choice in [] if event == "[DONE]" else event["choices"]:
                by_choice.setdefault(choice["index"], []).append((choice, event["usage"]))
        return by_choice

    whole = streamed()
    for cut in range(len(whole)):
        rest = streamed(last_id(whole[:cut]))
        assert told(whole[:cut] + rest) == told(whole)
        again = data.draw(st.integers(0, len(rest)))
        kept = whole[:cut] + rest[:again]
        assert told(kept + streamed(last_id(kept))) == told(whole)
        assert rest[-1:] == whole[-1:]


@pytest.mark.parametrize(
    "text", ["x", "-1", "1,2", "1.5", "1.end.end", "end", "usage", "1e9", "9" * 13, "1 2", "\u0661"]
)
def test_an_id_that_is_none_of_the_streams_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        positions.read(text, 1)
    assert caught.value.param == "Last-Event-ID"


@given(st.lists(st.tuples(st.integers(0, 10**9), st.booleans()), min_size=1), st.booleans())
def test_a_position_is_read_as_it_was_written(parts: Any, has_usage: bool) -> None:
    num_tokens, has_end = zip(*parts, strict=True)
    text = positions.written(num_tokens, has_end, has_usage=has_usage)
    assert positions.read(text, len(parts)) == Position(num_tokens, has_end, has_usage)


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
