"""The port on which all gateways accept, held by the supervisor for as long as it runs.

Each gateway inherits a listening socket of its own, so that the kernel spreads connections evenly;
those that come while a gateway is being started again wait in its backlog instead of being refused.
"""

import asyncio
import errno
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from common.config import flag

BACKLOG = 1024
ANSWER_SECONDS = 3.0
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class ListenError(Exception):
    """The address cannot be listened on; one line that says why."""


class Door:
    """Listening sockets on one port, one for each gateway."""

    def __init__(self, host: str, sockets: Sequence[socket.socket]) -> None:
        self._host = ANYWHERE.get(host, host)
        self._sockets = sockets
        self.port: int = sockets[0].getsockname()[1]
        self.descriptors = [sock.fileno() for sock in sockets]

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    def close(self) -> None:
        """Here; a gateway keeps its own until it has drained."""
        for sock in self._sockets:
            sock.close()

    async def trouble(self) -> str:
        """Why requests are not answered yet; "" once every gateway says that it is ready."""
        # The kernel picks the gateway: enough tries that none is likely to be left out.
        for _ in range(1 if len(self._sockets) == 1 else 4 * len(self._sockets)):
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    if said := await self._ask():
                        return said
            except (OSError, TimeoutError):
                return "no gateway answers yet"
        return ""

    async def _ask(self) -> str:
        reader, writer = await asyncio.open_connection(self._host, self.port)
        try:
            writer.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = (await reader.read()).decode(errors="replace")
        finally:
            writer.close()
        return trouble_in(answer)


def trouble_in(answer: str) -> str:
    """What an HTTP answer of /ready says is missing; "" if nothing."""
    head, _, body = answer.partition("\r\n\r\n")
    _, status, *_ = [*head.split(maxsplit=2), "", ""]
    if status == "200":
        return ""
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"/ready answers {status or 'nothing'}"


@contextmanager
def listen(host: str, port: int, count: int) -> Iterator[Door]:
    """`count` listening sockets on one port. Raises ListenError."""
    sockets: list[socket.socket] = []
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # Without SO_REUSEPORT first: with it, another program's port could be shared unawares.
        with socket.socket(family) as first:
            first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            first.bind(address)
            address = first.getsockname()
        for _ in range(count):
            sock = socket.socket(family)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise ListenError(_reason(host, port, error)) from None
    door = Door(host, sockets)
    try:
        yield door
    finally:
        door.close()


def _reason(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{flag('port')}: {port} on {host} is in use; name another, or 0 for any free one"
    if error.errno == errno.EACCES:
        return f"{flag('port')}: {port} needs more rights; name one above 1023"
    return f"{flag('host')}: cannot listen on {host} ({error.strerror})"
