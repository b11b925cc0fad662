"""What is no HTTP gets an error in OpenAI's shape, over a real socket."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import orjson
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import http_server
from gateway.http_server import MAX_HEAD_BYTES, Server, make_server
from gateway.replies import reply

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
GET_AND_CLOSE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
LEFT = asyncio.Event()  # a client of /silent
FLOODED = asyncio.Event()  # enough of /flood
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with how many headers came, or as the path says."""
    await PATHS.get(scope["path"], whole)(scope, receive, send)


async def whole(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await reply(send, 200, orjson.dumps(len(scope["headers"])))


async def slow(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(0.7)
    await whole(scope, receive, send)


async def refused(_scope: Scope, _receive: Receive, send: Send) -> None:
    await reply(send, 413, b"")


async def silent(_scope: Scope, receive: Receive, send: Send) -> None:
    """Until the client leaves."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while (await receive())["type"] != "http.disconnect":
        pass
    LEFT.set()


async def flood(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while not FLOODED.is_set():
        await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
        await asyncio.sleep(0)


PATHS: dict[str, ASGIApp] = {
    "/slow": slow,
    "/refused": refused,
    "/silent": silent,
    "/flood": flood,
}


@contextlib.asynccontextmanager
async def listening(max_connections: int | None = None) -> AsyncIterator[int]:
    server: Server = make_server(app, 1, max_connections)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve(sockets=[listener]))
            yield listener.getsockname()[1]
            server.should_exit = True


async def test_who_connected_before_the_end_is_answered() -> None:
    """Its request may be under way; one that never comes is waited for no longer than a moment."""
    server: Server = make_server(app, 10)
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve(sockets=[listener]))
            number = listener.getsockname()[1]
            asks, never_asks, has_asked = [
                await asyncio.open_connection("127.0.0.1", number) for _ in range(3)
            ]
            has_asked[1].write(GET)
            await has_asked[0].readuntil(b"\r\n\r\n")
            server.should_exit = True
            began = loop.time()
            await asyncio.sleep(0.3)  # until it has noticed
            asks[1].write(GET)
            answer = await asks[0].read()
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"connection: close\r\n" in answer
            assert await has_asked[0].read() in {b"1", b""}
            assert await never_asks[0].read() == b""
            await serving
            assert loop.time() - began < http_server.FIRST_SECONDS + 2.0
    for _, writer in (asks, never_asks, has_asked):
        writer.close()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with listening() as number:
        yield number


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


async def test_a_broken_body_is_answered_once(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """Also where the application has its answer ready without having read it."""
    head = b"POST /refused HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, body = await ask(port, head + b"many\r\n")
    assert (status, message_of(body)) == (400, "This is no valid HTTP request.")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


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
    await send_pieces(writer, first)
    answers = await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(1)
    await send_pieces(writer, second)
    answers += await reader.read()
    writer.close()
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert b"error" not in answers


@pytest.mark.parametrize("kept", [b"", b"Connection: close\r\n"])
async def test_who_still_sends_hears_why_it_is_refused(port: int, kept: bytes) -> None:
    """Much more than the buffers between the two hold."""
    much = b"x" * (8 << 20)
    head = b"POST /refused HTTP/1.1\r\nHost: x\r\n" + kept
    told = b"Content-Length: %d\r\n\r\n" % len(much)
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(much)
    for rest in (told, chunked):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + rest)
        await asyncio.sleep(0.05)  # it is answered before the body comes
        writer.write(much)
        await writer.drain()
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413")
        assert not kept or await reader.read() == b""
        writer.close()


async def send_pieces(writer: asyncio.StreamWriter, pieces: list[bytes]) -> None:
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01)


async def test_an_answer_that_has_begun_is_cut_and_not_garbled(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /silent HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"nonsense\r\n\r\n")
    rest = await reader.read()
    writer.close()
    assert b"error" not in rest


@pytest.mark.parametrize("ahead", [GET, b"nonsense\r\n\r\n"], ids=["request", "nonsense"])
async def test_what_is_sent_ahead_is_not_answered(port: int, ahead: bytes) -> None:
    """Whether it comes with the request before it or while that is answered."""
    for parts in ([GET + ahead], [b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n", ahead]):
        async with asyncio.timeout(3):  # it would be kept alive for longer
            status, body = await ask(port, *parts)
        assert (status, body) == (200, b"1")


async def test_who_leaves_is_noticed_though_it_sent_a_request_ahead(port: int) -> None:
    LEFT.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /silent HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
    await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await asyncio.wait_for(LEFT.wait(), 5)


# Who takes too long


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SWEEP_TICKS", 1)
    for name in ("HEAD_SECONDS", "REST_SECONDS", "STALLED_SECONDS"):
        monkeypatch.setattr(http_server, name, 0.3)


@pytest.mark.parametrize("said", [b"", b"G", HEAD, HEAD + b"X-More: y"])
async def test_a_head_that_never_ends_is_answered_and_closed(
    hurry: None, port: int, said: bytes
) -> None:
    status, body = await ask(port, said)
    assert (status, message_of(body)) == (408, "The headers took too long.")


async def test_a_trickle_of_headers_gains_no_time(hurry: None, port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD)
    await trickle(writer, b"X-More: y\r\n")


async def trickle(writer: asyncio.StreamWriter, part: bytes) -> None:
    """Send it again and again, until the server has closed the connection, which it must."""
    for _ in range(100):
        writer.write(part)
        try:
            await writer.drain()
        except ConnectionError:
            break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("still open")
    writer.close()


async def test_the_next_head_on_a_connection_has_its_own_time(hurry: None, port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(5):
        writer.write(GET)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await reader.readexactly(1)
        await asyncio.sleep(0.15)  # all of them together are longer than a head may take
    writer.write(b"GET / HT")
    assert (await reader.read()).startswith(b"HTTP/1.1 408")
    writer.close()


async def test_empty_lines_keep_no_connection(hurry: None, port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    await reader.readuntil(b"\r\n\r\n")
    await trickle(writer, b"\r\n")


async def test_an_answer_may_take_its_time(hurry: None, port: int) -> None:
    status, body = await ask(port, b"GET /slow HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert (status, body) == (200, b"1")


@pytest.mark.parametrize("kept", [b"", b"Connection: close\r\n"])
async def test_a_body_that_was_answered_and_does_not_end_is_cut(
    hurry: None, port: int, kept: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n"
    writer.write(head + kept + b"\r\n")
    await reader.readuntil(b"\r\n\r\n")
    await trickle(writer, b"x")


async def test_who_never_reads_is_cut_and_who_reads_slowly_is_not(
    hurry: None, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "STALLED_SECONDS", 1.0)
    FLOODED.clear()
    slow_one = socket.create_connection(("127.0.0.1", port))
    never = socket.create_connection(("127.0.0.1", port))
    for client in (slow_one, never):
        client.sendall(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
        client.setblocking(False)
    receive = asyncio.get_running_loop().sock_recv
    try:
        for _ in range(80):  # longer than may pass without a byte
            await asyncio.sleep(0.03)
            assert await receive(slow_one, 1 << 20)
        async with asyncio.timeout(5):
            while await receive(never, 1 << 20):
                pass
    finally:
        FLOODED.set()
        slow_one.close()
        never.close()


async def test_the_oldest_that_ask_for_nothing_give_way() -> None:
    async with listening(max_connections=8) as port:
        busy_reader, busy = await asyncio.open_connection("127.0.0.1", port)
        busy.write(b"GET /silent HTTP/1.1\r\nHost: x\r\n\r\n")
        await busy_reader.readuntil(b"\r\n\r\n")
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
        await asyncio.sleep(0.1)
        assert await ask(port, GET_AND_CLOSE) == (200, b"2")
        is_over = [reader.at_eof() or reader.exception() is not None for reader, _ in idle]
        assert is_over.count(False) in {6, 7}
        assert is_over == sorted(is_over, reverse=True)
        assert not busy_reader.at_eof()
        for _, writer in [*idle, (busy_reader, busy)]:
            writer.close()
