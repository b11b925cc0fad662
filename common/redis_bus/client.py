"""Commands to the server and their answers, over a bounded number of connections.

redis-py's own retries are off: they would repeat what must not be, and hide what must be known.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)

from common.bus import BusError, FullError, ServerError
from common.redis_bus.connection import Connection, LostError
from common.redis_bus.wire import Command, pack

log = structlog.get_logger()

ANSWER_SECONDS = 5.0  # beyond BLOCK; a slow disk delays answers by up to two seconds
MAX_CONNECTIONS = 16

# What a server says that is starting, busy with a script, failing over or out of disk.
PASSING = (
    *("LOADING", "BUSY ", "MISCONF", "NOREPLICAS", "MASTERDOWN", "READONLY", "UNBLOCKED"),
    *("TRYAGAIN", "CLUSTERDOWN"),
)
NO_FUNCTION = "Function not found"


class Client:
    """Connections do one round trip each at a time; readers that block have their own.

    A connection on which anything went wrong, a cancellation included, is never used again.
    """

    def __init__(self, url: str, max_connections: int = MAX_CONNECTIONS) -> None:
        try:
            # Only makes connections. Its pool costs more time than a round trip.
            self._factory = ConnectionPool.from_url(
                url,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                client_name="chairlift",
                socket_connect_timeout=ANSWER_SECONDS,
                socket_timeout=None,  # Python 3.11 loses cancellations in what it would wrap
            )
        except ValueError as error:
            raise ServerError(f"bad Redis URL: {error}") from None
        self._free = asyncio.Semaphore(max_connections)
        self._idle: list[Connection] = []
        self._idle_blocking: list[Connection] = []

    async def connect(self) -> Connection:
        """A new one, the caller's own. `LostError`, `ServerError`."""
        opened: AbstractConnection = self._factory.make_connection()  # type: ignore[no-untyped-call]
        is_open = False
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await opened.connect()  # type: ignore[no-untyped-call]
            is_open = True
        except (RedisError, OSError, TimeoutError) as error:
            raise _trouble(error) from None
        finally:
            if not is_open:
                await opened.disconnect(nowait=True)
        return Connection(opened)

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """The replies, errors among them, of one pipeline without a transaction. `LostError`."""
        async with self._free:
            return await self._exchange(self._idle, commands, ANSWER_SECONDS)

    async def run_blocking(self, commands: Sequence[Command], block_seconds: float) -> list[Any]:
        """As `run`, where the last command may block, on a connection that nobody waits for."""
        bound = block_seconds + ANSWER_SECONDS
        return await self._exchange(self._idle_blocking, commands, bound)

    async def aclose(self) -> None:
        for connection in [*self._idle, *self._idle_blocking]:
            await connection.aclose()
        self._idle.clear()
        self._idle_blocking.clear()

    async def _exchange(
        self, idle: list[Connection], commands: Sequence[Command], bound: float
    ) -> list[Any]:
        packed = b"".join([pack(command) for command in commands])
        connection = idle.pop() if idle else await self.connect()
        is_clean = False
        try:
            replies = await connection.exchange(packed, len(commands), bound)
            is_clean = True
        except RedisError as error:
            raise _trouble(error) from None
        finally:
            if is_clean:
                idle.append(connection)
            else:
                await connection.aclose()
        return replies


def _trouble(error: Exception) -> LostError | ServerError:
    # redis-py wraps the one in a ConnectionError, while it connects.
    if isinstance(error, AuthenticationError) or isinstance(error.__cause__, AuthenticationError):
        return ServerError(f"the server refuses us: {error}")
    return LostError(f"{type(error).__name__}: {error}")


def raise_if_error(reply: Any) -> None:
    """`LostError` for what passes, another `BusError` for what repetition would not cure."""
    if not isinstance(reply, ResponseError):
        return
    said = f"{getattr(reply, 'status_code', None) or ''} {reply}".strip()
    if said.startswith(PASSING) or NO_FUNCTION in said:
        raise LostError(said)
    if isinstance(reply, OutOfMemoryError):
        raise FullError("the server has no memory left")
    if isinstance(reply, NoPermissionError):
        raise ServerError(f"the server refuses us: {said}")
    raise BusError(said)
