"""One HTTP/1.1 exchange on a connection of its own, read as it comes; as little work as can be.

The client shares its machine with the server that it measures, hence a bare protocol and no
library.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

MAX_HEAD_BYTES = 1 << 16


class ExchangeError(Exception):
    """The exchange failed; the text is its kind, without figures, so that kinds can be counted."""


@dataclass(frozen=True)
class Server:
    host: str
    port: int
    is_tls: bool
    prefix: str  # of paths, as `/openai`
    headers: Mapping[str, str]

    @classmethod
    def parse(cls, url: str, api_key: str = "") -> "Server":
        """`http://host:8000`, with or without `/v1` at its end; ValueError for another scheme."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{url!r} is no http or https address")
        is_tls = parts.scheme == "https"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, parts.port or (443 if is_tls else 80), is_tls, prefix, headers)

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The whole request as it is sent."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        headers = {
            "Host": f"{host}:{self.port}",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            **self.headers,
        }
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        return f"{method} {self.prefix}{path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode() + body


async def exchange(server: Server, request: bytes, on_body: Callable[[bytes], None]) -> int:
    """Send, and hand on the answer's body as it comes; on its end the status.

    ExchangeError where the answer is no HTTP or is cut short, OSError where there is no connection.
    """
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context() if server.is_tls else None
    transport, protocol = await loop.create_connection(
        lambda: _Exchange(request, on_body, loop.create_future()),
        server.host,
        server.port,
        ssl=context,
    )
    try:
        return await protocol.status
    finally:
        transport.close()


class ChunkedBody:
    """The chunked coding, fed in any pieces."""

    def __init__(self) -> None:
        self.is_complete = False
        self._held = b""  # a line that is not complete yet
        self._left = 0  # bytes of the current chunk still to come
        self._skip_line_end = False

    def feed(self, data: bytes) -> bytes:
        body, at = [], 0
        data, self._held = self._held + data, b""
        while at < len(data) and not self.is_complete:
            if self._left:
                body.append(data[at : at + self._left])
                at += len(body[-1])
                self._left -= len(body[-1])
                self._skip_line_end = not self._left
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._held = data[at:]
                break
            self._line(data[at:end])
            at = end + 1
        return b"".join(body)

    def _line(self, line: bytes) -> None:
        """The line end behind a chunk, or the size of the next; trailers are not read."""
        if self._skip_line_end:
            self._skip_line_end = False
            return
        try:
            self._left = int(line.partition(b";")[0], 16)
        except ValueError:
            raise ExchangeError("bad chunk") from None
        self.is_complete = not self._left


class PlainBody:
    """A body of known length, or one that ends with the connection (`length` None)."""

    def __init__(self, length: int | None) -> None:
        self.length = length
        self._seen = 0

    @property
    def is_complete(self) -> bool:
        return self.length is not None and self._seen >= self.length

    def feed(self, data: bytes) -> bytes:
        self._seen += len(data)
        return data


class _Exchange(asyncio.Protocol):
    def __init__(
        self, request: bytes, on_body: Callable[[bytes], None], status: "asyncio.Future[int]"
    ) -> None:
        self.status = status  # set when the body has ended
        self._request = request
        self._on_body = on_body
        self._head = b""
        self._code = 0
        self._body: ChunkedBody | PlainBody | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        cast("asyncio.WriteTransport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.status.done():
            return
        try:
            self._receive(data)
        except Exception as error:  # noqa: BLE001 - belongs to whoever awaits the exchange
            self.status.set_exception(error)

    def _receive(self, data: bytes) -> None:
        if self._body is None:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                if len(self._head) > MAX_HEAD_BYTES:
                    raise ExchangeError("no HTTP answer")
                return
            self._code, self._body = parse_head(head)
        if body := self._body.feed(data):
            self._on_body(body)
        if self._body.is_complete:
            self.status.set_result(self._code)

    def connection_lost(self, error: Exception | None) -> None:
        if self.status.done():
            return
        ends_so = isinstance(self._body, PlainBody) and self._body.length is None
        if ends_so and error is None:
            self.status.set_result(self._code)
        else:
            self.status.set_exception(ExchangeError("connection cut"))


def parse_head(head: bytes) -> tuple[int, ChunkedBody | PlainBody]:
    """The status, and how the body is to be read."""
    first, *lines = head.split(b"\r\n")
    version, _, rest = first.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise ExchangeError("no HTTP answer")
    fields = dict(line.lower().split(b":", 1) for line in lines if b":" in line)
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        return int(rest[:3]), ChunkedBody()
    length = fields.get(b"content-length", b"").strip()
    return int(rest[:3]), PlainBody(int(length) if length.isdigit() else None)
