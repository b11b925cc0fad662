"""The few words of Redis's protocol that a supervisor needs: who answers there, and is it fit."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit

OLDEST = (7, 0)
TIMEOUT_SECONDS = 5.0

Reply = bytes | int | list["Reply"] | None


class ProbeError(Exception):
    """No server answers there, or not as it should; one line that says which."""


@dataclass(frozen=True)
class Address:
    """Of a server: a socket's path, or host and port."""

    path: str = ""
    host: str = "127.0.0.1"
    port: int = 6379
    user: str = ""
    password: str = ""
    db: int = 0
    is_tls: bool = False

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"  # never the password


def parse_url(url: str) -> Address:
    """`redis://`, `rediss://` or `unix://`. Raises ProbeError."""
    not_a_url = ProbeError("not a URL as redis://user:password@host:port/db")
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise not_a_url
        query = {name: found[-1] for name, found in parse_qs(parts.query).items()}
        db = query.get("db", "" if parts.scheme == "unix" else parts.path.strip("/")) or "0"
        return Address(
            path=unquote(parts.path) if parts.scheme == "unix" else "",
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 6379,
            user=unquote(parts.username or query.get("username", "")),
            password=unquote(parts.password or "") or query.get("password", ""),
            db=int(db),
            is_tls=parts.scheme == "rediss",
        )
    except ValueError:
        raise not_a_url from None


def check(address: Address) -> None:
    """Raises ProbeError unless a server answers that is new enough."""
    with connect(address) as connection:
        reply = connection.command("INFO", "server")
    text = reply.decode() if isinstance(reply, bytes) else ""
    found = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    version = found.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        oldest = ".".join(str(part) for part in OLDEST)
        raise ProbeError(
            f"{address}: Redis {version} is too old: {oldest} is the oldest with functions"
        )


class Connection:
    def __init__(self, sock: socket.socket, stream: BinaryIO) -> None:
        self._sock = sock
        self._stream = stream

    def command(self, *words: str) -> Reply:
        """Sends one command and reads its answer. An error reply is a ProbeError."""
        encoded = [word.encode() for word in words]
        parts = [b"*%d\r\n" % len(encoded)]
        parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded]
        self._sock.sendall(b"".join(parts))
        return self._read()

    def _read(self) -> Reply:
        line = self._stream.readline()
        if not line.endswith(b"\r\n"):
            raise ProbeError("the server hung up")
        kind, rest = line[:1], line[1:-2]
        match kind:
            case b"+":
                return rest
            case b"-":
                raise ProbeError(rest.decode(errors="replace"))
            case b":":
                return int(rest)
            case b"$":
                return None if rest == b"-1" else self._stream.read(int(rest) + 2)[:-2]
            case b"*":
                return [self._read() for _ in range(int(rest))]
            case _:
                raise ProbeError("what answers there is no Redis server")


@contextmanager
def connect(address: Address) -> Iterator[Connection]:
    """A connection that is authenticated. Raises ProbeError, also for what happens inside."""
    try:
        with _socket(address) as sock, sock.makefile("rb") as stream:
            connection = Connection(sock, stream)
            if address.password:
                connection.command("AUTH", *filter(None, [address.user, address.password]))
            if address.db:
                connection.command("SELECT", str(address.db))
            yield connection
    except ProbeError as error:
        text = str(error)
        raise ProbeError(text if text.startswith(str(address)) else f"{address}: {text}") from None
    except OSError as error:
        raise ProbeError(f"{address}: no server answers ({error.strerror or error})") from None


def _socket(address: Address) -> socket.socket:
    if not address.path:
        sock = socket.create_connection((address.host, address.port), TIMEOUT_SECONDS)
        return _with_tls(sock, address.host) if address.is_tls else sock
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(TIMEOUT_SECONDS)
        sock.connect(address.path)
    except OSError:
        sock.close()
        raise
    return sock


def _with_tls(sock: socket.socket, host: str) -> socket.socket:
    try:
        return ssl.create_default_context().wrap_socket(sock, server_hostname=host)
    except OSError:
        sock.close()
        raise
