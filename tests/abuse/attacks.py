"""What an ill-willed or broken client does to the gateway, over bare sockets.

Each attack is a coroutine that ends by itself, and says what it saw that must not be.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass

LONG = 0.2  # scale from which a run is no short one
CLOSE_SECONDS = 90.0  # within which the gateway must have ended a connection that it refuses
MODEL = "SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Target:
    host: str
    port: int
    scale: float  # of the numbers of connections: 1 is the long form
    rng: random.Random

    def count(self, number: int) -> int:
        return max(3, int(number * self.scale))


Attack = Callable[[Target], Awaitable[list[str]]]


def body(**fields: object) -> bytes:
    asked = {"model": MODEL, "prompt": "Hello", "max_tokens": 12, "stream": True}
    return json.dumps(asked | fields).encode()


def post(content: bytes, *headers: str, path: str = "/v1/completions") -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content


@contextlib.asynccontextmanager
async def connected(
    target: Target,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(target.host, target.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer(target: Target, *parts: bytes, pause: float = 0.0) -> bytes:
    """All that comes until the gateway closes. TimeoutError if it never does."""
    async with asyncio.timeout(CLOSE_SECONDS), connected(target) as (reader, writer):
        received = bytearray()
        with contextlib.suppress(ConnectionError):  # it has refused already, and said so
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                received += data
        return bytes(received)


def statuses(received: bytes) -> list[int]:
    """Of each answer in what was received."""
    parts = received.split(b"HTTP/1.1 ")[1:]
    return [int(part[:3]) for part in parts if part[:3].isdigit()]


async def expect(
    target: Target, name: str, allowed: Iterable[int], *parts: bytes, pause: float = 0.0
) -> list[str]:
    """The first answer has an allowed status, and none is a server's fault."""
    try:
        found = statuses(await answer(target, *parts, pause=pause))
    except TimeoutError:
        return [f"{name}: still open after {CLOSE_SECONDS:g} s"]
    except OSError as error:
        return [f"{name}: {error!r}"]
    if not found or found[0] not in set(allowed) or max(found) >= 500:
        return [f"{name}: answered with {found}"]
    return []


async def no_http(target: Target) -> list[str]:
    """Half a line, other protocols, bytes at random."""
    rng = target.rng
    sent = [rng.randbytes(rng.randint(1, 3000)) for _ in range(target.count(200))]
    found: list[str] = []
    for data in [
        *sent,
        b"\x16\x03\x01\x02\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n\r\nx\r\n",
    ]:
        async with connected(target) as (reader, writer):
            writer.write(data)
            writer.write_eof()
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(0.2):
                    if max(statuses(await reader.read(1 << 16)), default=0) >= 500:
                        found.append(f"no HTTP: {data[:50]!r}")
    return found


async def heads(target: Target) -> list[str]:
    """Huge, broken, contradictory, with control characters."""
    close = b"Connection: close\r\n"
    cases: dict[str, tuple[set[int], bytes]] = {
        "a huge header": ({431}, b"GET / HTTP/1.1\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n"),
        "a huge path": ({404, 431}, b"GET /" + b"x" * (1 << 20) + b" HTTP/1.1\r\n\r\n"),
        "many headers": ({431}, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000 + b"\r\n"),
        "a NUL in a header": ({400}, b"GET /health HTTP/1.1\r\nX: a\0b\r\n\r\n"),
        "a folded header": ({400}, b"GET /health HTTP/1.1\r\nX: a\r\n b\r\n\r\n"),
        "two lengths": ({400}, post(b"{}", "Content-Length: 3")),
        "length and chunks": ({400}, post(b"{}", "Transfer-Encoding: chunked")),
        "a negative length": ({400}, b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
        "an endless length": (
            {400},
            b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 99 + b"\r\n\r\n",
        ),
        "an unknown coding": ({400}, b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n"),
        "bytes in a key": (
            {200, 400},
            post(body(), "Connection: close", "Idempotency-Key: \xff\x80"),
        ),
        "a key of nothing": ({400}, post(body(), "Connection: close", "Idempotency-Key:")),
        "a wrong event": (
            {400},
            post(body(), "Connection: close", "Last-Event-ID: \x01,;9999999999999999"),
        ),
        "a stream of bytes": (
            {404},
            b"GET /v1/streams/%FF%00%0d%0a HTTP/1.1\r\n" + close + b"\r\n",
        ),
        "a model of slashes": (
            {404},
            b"GET /v1/models/..%2f../%e2%82/x HTTP/1.1\r\n" + close + b"\r\n",
        ),
        "CONNECT": ({400, 404, 405}, b"CONNECT x:1 HTTP/1.1\r\n" + close + b"\r\n"),
        "an upgrade": (
            {405},
            b"GET /v1/completions HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade, close\r\n"
            b"Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        ),
    }
    return [
        text
        for name, (allowed, request) in cases.items()
        for text in await expect(target, name, allowed, request)
    ]


async def bodies(target: Target) -> list[str]:
    """Huge, broken, deep, of other encodings."""
    deep = b'{"model":"x","prompt":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    cases: dict[str, tuple[set[int], bytes]] = {
        "no UTF-8": ({400}, body()[:-1] + b',"user":"\xff\xfe"}'),
        "a lone surrogate": ({400}, body()[:-1] + b',"user":"\\ud800"}'),
        "UTF-16": ({400}, body().decode().encode("utf-16")),
        "deep nesting": ({400}, deep),
        "deep objects": ({400}, b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        "NaN": ({400}, body()[:-1] + b',"temperature":NaN}'),
        "a huge number": ({400}, body()[:-1] + b',"seed":' + b"9" * 5000 + b"}"),
        "a million values": ({400}, b'{"prompt":[' + b"1," * 1_000_000 + b"1]}"),
        "a key of a megabyte": ({400}, b'{"' + b"k" * (1 << 20) + b'":1}'),
        "the same key again": ({200}, body()[:-1] + b',"n":1' * 1000 + b"}"),
        "nothing": ({400}, b""),
        "NUL": ({400}, b"\0" * 1000),
        "a text too long": ({400}, body(prompt="word " * 400_000)),
        "many choices": ({400}, body(n=1_000_000)),
        "too large": ({413}, body(prompt="x" * (17 << 20))),
    }
    found: list[str] = []
    for name, (allowed, content) in cases.items():
        for path in ("/v1/completions", "/v1/chat/completions"):
            also = {400} if path.endswith("chat/completions") else set()
            request = post(content, "Connection: close", path=path)
            found += await expect(target, f"{name}, {path}", allowed | also, request)
    return found


async def chunks(target: Target) -> list[str]:
    """Broken chunking, and bodies that never end."""
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    whole = body()
    chunked = b"%x\r\n%s\r\n" % (len(whole), whole)
    mebibyte = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    bytewise = [b"1\r\n%c\r\n" % byte for byte in whole]
    found = await expect(target, "bytewise chunks", {200}, head, *bytewise, b"0\r\n\r\n")
    found += await expect(target, "an extension", {200}, head, chunked, b"0;x=y\r\nX: y\r\n\r\n")
    found += await expect(target, "a wrong size", {400}, head, b"zz\r\n")
    found += await expect(target, "a negative size", {400}, head, b"-1\r\n")
    found += await expect(target, "a size too large", {400}, head, b"f" * 40 + b"\r\n")
    found += await expect(target, "a chunk too long", {400}, head, b"1\r\nxxxx\r\n")
    found += await expect(target, "chunks without end", {413}, head, *[mebibyte] * 40)
    return found


async def pipelines(target: Target) -> list[str]:
    """Requests ahead of their answers, whole and broken, and then away."""
    get = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    found = await expect(target, "a thousand requests ahead", {200}, get * 1000)
    found += await expect(target, "a stream, and more ahead", {200}, post(body()) + get * 50)
    found += await expect(target, "nonsense ahead", {200}, post(body()) + b"\0\1\2\r\n\r\n" * 50)
    for _ in range(target.count(100)):
        async with connected(target) as (reader, writer):
            writer.write(post(body(max_tokens=2000)) + get * 3)
            await reader.read(target.rng.randint(1, 3000))
    return found


async def leavers(target: Target) -> list[str]:
    """Away after each byte of a request, and after each frame of a stream."""
    request = post(body(max_tokens=30))
    num_bytes = range(0, len(request) + 1, 1 if target.scale >= LONG else 17)
    for size in num_bytes:
        async with connected(target) as (_, writer):
            writer.write(request[:size])
            await asyncio.sleep(0)
    for num_frames in range(0, 30, 1 if target.scale >= LONG else 10):
        for kind in ((), ("X-Resumable: true",)):
            async with connected(target) as (reader, writer):
                writer.write(post(body(max_tokens=30), *kind))
                with contextlib.suppress(asyncio.IncompleteReadError):
                    for _ in range(num_frames + 1):
                        await reader.readuntil(b"\n\n" if num_frames else b"\r\n\r\n")
    return []


async def half_closed(target: Target) -> list[str]:
    """Who sends no more, and reads on: it has left, or it gets its answer, and nothing hangs."""
    found: list[str] = []
    for _ in range(target.count(20)):
        async with asyncio.timeout(CLOSE_SECONDS), connected(target) as (reader, writer):
            writer.write(post(body(), "Connection: close"))
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                if max(statuses(await reader.read()), default=0) >= 500:
                    found.append("who sends no more is answered with a server's fault")
    return found


async def slow(target: Target) -> list[str]:
    """Many who send a byte now and then, in the head and in the body."""
    async with asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(_trickle(target, number % 2 == 0), name="slow")
            for number in range(target.count(500))
        ]
    return [text for task in asked for text in task.result()][:5]


async def _trickle(target: Target, is_head: bool) -> list[str]:
    """Of the short form: only for some seconds."""
    seconds = CLOSE_SECONDS if target.scale >= LONG else 2.0
    request = post(body()) if not is_head else b"GET /health HTTP/1.1\r\n"
    said = request[:-40] if not is_head else request
    try:
        async with asyncio.timeout(seconds), connected(target) as (reader, writer):
            writer.write(said)
            while not reader.at_eof():
                writer.write(b" " if not is_head else b"X: y\r\n")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        found = statuses(await reader.read(1 << 16))
                        if found and found[0] not in {408, 400}:
                            return [f"a trickle is answered with {found}"]
    except ConnectionError:
        return []
    except TimeoutError:
        return ["a trickle is read for ever"] if target.scale >= LONG else []
    return []


async def deaf(target: Target) -> list[str]:
    """Who asks for much, though no more than a gateway can send, and never reads it."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(target.count(100)):
            _, writer = await stack.enter_async_context(connected(target))
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(post(body(max_tokens=2000, n=8)))
        await asyncio.sleep(10.0 * min(target.scale, 1.0))
    return []


async def connects(target: Target) -> list[str]:
    """Ten thousand connections: idle ones held together, and those that come and go.

    They end some at a time: the end of all at once costs the gateway as long as so many ends take.
    """
    slots = asyncio.Semaphore(100)
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> None:
        async with slots:
            _, writer = await asyncio.open_connection(target.host, target.port)
            writers.append(writer)

    found: list[str] = []
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(target.count(5000)):
                tasks.create_task(connect(), name="connect")
    except* OSError as group:
        found.append(f"connections are refused: {group.exceptions[0]!r}")
    await asyncio.sleep(1.0)
    for number, writer in enumerate(writers):
        writer.transport.abort()
        if number % 50 == 0:
            await asyncio.sleep(0.01)
    for _ in range(target.count(5000)):
        async with connected(target):
            pass
    return found


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        *(no_http, heads, bodies, chunks, pipelines, leavers, half_closed, slow, deaf, connects),
    )
}
