"""An HTTP server for tests of the load client: its delays and faults are known."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
DONE = b"data: [DONE]\n\n"
GAP = 0.03  # seconds; the server's own pace


def frame(**fields: object) -> bytes:
    return b"id: 1\ndata: " + json.dumps(fields).encode() + b"\n\n"


def token(text: str = "x", finish: str | None = None) -> bytes:
    return frame(choices=[{"index": 0, "text": text, "finish_reason": finish}])


def usage(prompt: int, output: int) -> bytes:
    return frame(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": output})


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


Writer = asyncio.StreamWriter
Script = Callable[[dict, Writer], Awaitable[None]]  # a request's body to its answer


@dataclass
class FakeServer:
    """Reads whole requests, answers each as `script` says."""

    script: Script
    bodies: list[dict] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    now_open: int = 0
    most_open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        self.heads.append(head)
        self.now_open += 1
        self.most_open = max(self.most_open, self.now_open)
        if head.startswith(b"GET /v1/models"):
            answer = b'{"data": [{"id": "fake"}]}'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
        else:
            self.bodies.append(json.loads(body))
            await self.script(self.bodies[-1], writer)
        writer.close()
        await writer.wait_closed()
        self.now_open -= 1

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[None]:
        """Leaves when every answer is written."""
        yield
        while self.now_open:  # noqa: ASYNC110 - short, and simpler than an event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    script: Script,
) -> AsyncIterator[tuple[FakeServer, str]]:
    fake = FakeServer(script)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    async with server, fake.idle():
        yield fake, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def write_slowly(writer: Writer, pieces: list[bytes], seconds: float = GAP) -> None:
    """Each piece after a pause."""
    for piece in pieces:
        await asyncio.sleep(seconds)
        writer.write(piece)
        await writer.drain()


async def four_tokens(body: dict, writer: Writer) -> None:
    """Three frames for four tokens, a pause before each."""
    writer.write(CHUNKED)
    await write_slowly(writer, [chunk(token("a")), chunk(token("bc")), chunk(token("d", "length"))])
    writer.write(chunk(usage(5, 4)) + chunk(DONE) + b"0\r\n\r\n")
