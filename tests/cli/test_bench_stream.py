"""Answers in pieces of any size: HTTP's framing, and the frames of the stream within it."""

import pytest

from cli.bench.http import ChunkedBody, ExchangeError, PlainBody, Server, parse_head
from cli.bench.stream import TokenStream
from tests.cli.bench_server import DONE, chunk, frame, token, usage


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 64, 10_000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_pieces_may_end_anywhere(size: int, line_end: bytes) -> None:
    frames = [b": hello\n\n", token("a"), token("é"), token("c", "stop"), usage(3, 9), DONE]
    wire = b"".join(chunk(part.replace(b"\n", line_end)) for part in frames) + b"0\r\nX: y\r\n\r\n"
    clock = iter(range(100_000))
    body, stream = ChunkedBody(), TokenStream(lambda: next(clock))
    for start in range(0, len(wire), size):
        if data := body.feed(wire[start : start + size]):
            stream.feed(data)
    stream.close()
    assert body.is_complete
    assert len(stream.times) == 3
    assert stream.is_done
    assert not stream.error
    assert stream.usage == {"prompt_tokens": 3, "completion_tokens": 9}


def test_a_finish_without_text_is_no_token() -> None:
    stream = TokenStream(lambda: 1.0)
    stream.feed(token("a") + token("") + token("", "stop") + DONE)
    stream.close()
    assert len(stream.times) == 2  # the empty one in the middle is half a character


def test_counts_in_every_frame_do_not_hide_the_last() -> None:
    def counted(output: int) -> bytes:
        choice = {"index": 0, "text": "x", "finish_reason": None}
        return frame(choices=[choice], usage={"prompt_tokens": 1, "completion_tokens": output})

    stream = TokenStream(lambda: 1.0)
    stream.feed(counted(1) + counted(2) + usage(1, 3) + DONE)
    stream.close()
    assert stream.usage["completion_tokens"] == 3


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: 7\n\n"])
def test_frames_that_are_no_objects_are_errors(data: bytes) -> None:
    stream = TokenStream(lambda: 1.0)
    stream.feed(data)
    assert stream.error


def test_bad_chunks_are_errors() -> None:
    with pytest.raises(ExchangeError):
        ChunkedBody().feed(b"zz\r\n")


def test_heads_say_how_to_read_the_body() -> None:
    status, body = parse_head(b"HTTP/1.1 404 Not Found\r\nContent-Length: 3")
    assert status == 404
    assert body.feed(b"abc") == b"abc"
    assert body.is_complete
    _, body = parse_head(b"HTTP/1.0 200 OK\r\nServer: x")
    assert isinstance(body, PlainBody)
    assert body.length is None


def test_addresses() -> None:
    server = Server.parse("https://[::1]/openai/v1/", "key")
    assert (server.host, server.port, server.prefix) == ("::1", 443, "/openai")
    request = server.request("GET", "/v1/models")
    assert request.startswith(b"GET /openai/v1/models HTTP/1.1\r\nHost: [::1]:443\r\n")
    assert b"Authorization: Bearer key\r\n" in request
    with pytest.raises(ValueError, match="no http"):
        Server.parse("127.0.0.1:8000")


@pytest.mark.parametrize(
    "fields",
    [{"choices": 7}, {"choices": [7]}, {"choices": [], "usage": 3}, {"choices": [{"delta": 1}]}],
)
def test_frames_of_another_shape_are_errors(fields: dict[str, object]) -> None:
    stream = TokenStream(lambda: 1.0)
    stream.feed(frame(**fields) + DONE)
    stream.close()
    assert stream.error == "frame of another shape"


def test_the_text_of_an_answer_is_kept_where_a_conversation_goes_on() -> None:
    stream = TokenStream(lambda: 1.0, keeps_frames=True)
    role = frame(choices=[{"delta": {"role": "assistant", "content": ""}}])
    stream.feed(
        role + frame(choices=[{"delta": {"content": "a"}}]) + token("b") + usage(1, 2) + DONE
    )
    stream.close()
    assert stream.text() == "ab"
    assert TokenStream(lambda: 1.0).text() == ""
