"""What is no HTTP gets an error in OpenAI's shape, over a real socket."""

import asyncio
import socket
from collections.abc import AsyncIterator

import orjson
import pytest
from starlette.types import Receive, Scope, Send

from gateway.http_server import MAX_HEAD_BYTES, Server, make_server
from gateway.replies import reply

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with how many headers came, or streams for ever."""
    if scope["path"] == "/endless":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] != "http.disconnect":
            await send({"type": "http.response.body", "body": b"on", "more_body": True})
        return
    while (await receive()).get("more_body"):
        pass
    await reply(send, 200, orjson.dumps(len(scope["headers"])))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server: Server = make_server(app, graceful_seconds=1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve(sockets=[listener]))
            yield listener.getsockname()[1]
            server.should_exit = True


async def ask(port: int, *parts: bytes) -> tuple[int, bytes]:
    """Status and body of the answer after which the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"
    return int(head.split()[1]), body


def message_of(body: bytes) -> str:
    error = orjson.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return str(error["message"])


@pytest.mark.parametrize(
    "text",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        HEAD + b"Content-Length: many\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nmany\r\n",
    ],
    ids=["tls", "nonsense", "version", "path", "header", "length", "chunk"],
)
async def test_what_is_no_http_is_told_so(port: int, text: bytes) -> None:
    status, body = await ask(port, text)
    assert (status, message_of(body)) == (400, "This is no valid HTTP request.")


async def test_headers_without_end_are_refused(port: int) -> None:
    part = b"X-Long: " + b"x" * 1000 + b"\r\n"
    parts = [part * 30] * 3  # the third is beyond the limit
    assert 2 * len(parts[0]) < MAX_HEAD_BYTES < 3 * len(parts[0])
    status, body = await ask(port, HEAD, *parts)
    assert (status, message_of(body)) == (431, "The headers are too large.")


async def test_a_head_in_pieces_and_a_long_body_are_fine(port: int) -> None:
    """Also on a connection on which much came before."""
    length = 2 * MAX_HEAD_BYTES
    most = b"X-Long: " + b"x" * (MAX_HEAD_BYTES * 2 // 3) + b"\r\n"
    first = [HEAD, most, b"Content-Length: %d\r\n\r\n" % length + b"x" * length]
    second = [b"POST / HT", b"TP/1.1\r\nHo", b"st: x\r\n", most, b"Connection: close\r\n\r\n"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in (*first, *second):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01)
    answers = await reader.read()
    writer.close()
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert b"error" not in answers


async def test_an_answer_that_has_begun_is_cut_and_not_garbled(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"nonsense\r\n\r\n")
    rest = await reader.read()
    writer.close()
    assert b"error" not in rest
