"""Commands to the server and their answers: bounded connections, and repetition until answered.

Everything sent through `repeat` may happen twice. redis-py's own retries are off: they would
repeat what must not be, and hide what a caller must know.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
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
from common.redis_bus.wire import Arg, Command, pack

log = structlog.get_logger()

ANSWER_SECONDS = 5.0  # beyond BLOCK; a slow disk delays answers by up to two seconds
BLOCK_SECONDS = 1.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 1.0
MAX_CONNECTIONS = 16
MAX_PIPELINE = 512  # commands of one round trip, so that it is done within its bound

# What a server says that is starting, busy with a script, failing over or out of disk.
PASSING = (
    *("LOADING", "BUSY ", "MISCONF", "NOREPLICAS", "MASTERDOWN", "READONLY", "UNBLOCKED"),
    *("TRYAGAIN", "CLUSTERDOWN"),
)
NO_FUNCTION = "Function not found"


Prepare = Callable[["Client"], Awaitable[None]]


class LostError(Exception):
    """No answer: what was sent may have been done or not."""


class Client:
    """Connections are redis-py's, one round trip each at a time; readers that block have their own.

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
                socket_timeout=None,  # `_exchange` bounds sending and reading together
            )
        except ValueError as error:
            raise ServerError(f"bad Redis URL: {error}") from None
        self._free = asyncio.Semaphore(max_connections)
        self._idle: list[AbstractConnection] = []
        self._idle_blocking: list[AbstractConnection] = []

    def connection(self) -> AbstractConnection:
        """Not yet connected; the caller's own."""
        connection: AbstractConnection = self._factory.make_connection()  # type: ignore[no-untyped-call]
        return connection

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """The replies, errors among them, of one pipeline without a transaction. `LostError`."""
        async with self._free:
            return await self._exchange(self._idle, commands, ANSWER_SECONDS)

    async def run_blocking(self, command: Command, block_seconds: float) -> Any:
        """On a connection that nobody waits for."""
        bound = block_seconds + ANSWER_SECONDS
        [reply] = await self._exchange(self._idle_blocking, [command], bound)
        return reply

    async def aclose(self) -> None:
        for connection in [*self._idle, *self._idle_blocking]:
            await connection.disconnect()
        self._idle.clear()
        self._idle_blocking.clear()

    async def _exchange(
        self, idle: list[AbstractConnection], commands: Iterable[Command], bound: float
    ) -> list[Any]:
        packed = [pack(command) for command in commands]
        connection = idle.pop() if idle else self.connection()
        is_clean = False
        try:
            async with asyncio.timeout(bound):
                await connection.send_packed_command(packed, check_health=False)
                replies = [await _reply(connection) for _ in packed]
            is_clean = True
        except (RedisError, OSError, TimeoutError) as error:
            # redis-py wraps the one in a ConnectionError, while it connects.
            if isinstance(error, AuthenticationError) or isinstance(
                error.__cause__, AuthenticationError
            ):
                raise ServerError(f"the server refuses us: {error}") from None
            raise LostError(f"{type(error).__name__}: {error}") from None
        finally:
            if is_clean:
                idle.append(connection)
            else:
                await connection.disconnect(nowait=True)
        return replies


async def _reply(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


class Repeater:
    """A client whose operations end with an answer, however long the server is away.

    `prepare` is run before anything else, again after every loss, and where functions are missing.
    """

    def __init__(self, client: Client, prepare: Prepare) -> None:
        self.client = client
        self._prepare = prepare
        self._is_prepared = False
        self._is_lost = False
        self._preparing = asyncio.Lock()

    async def call(self, *command: Arg) -> Any:
        [reply] = await self.pipeline([command])
        return reply

    async def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Repeated from the first command that had no answer: those before it stay done once."""
        replies: list[Any] = []
        pauses = Pauses()
        while len(replies) < len(commands):
            try:
                await self._ready()
                left = commands[len(replies) : len(replies) + MAX_PIPELINE]
                for reply in await self.client.run(left):
                    raise_if_error(reply)
                    replies.append(reply)
            except LostError as error:
                await self._pause(pauses, error)
        self._found()
        return replies

    async def read(self, command: tuple[Arg, ...], block_seconds: float, *streams: Arg) -> Any:
        """XREAD with BLOCK in slices; None when the time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + block_seconds
        pauses = Pauses()
        while True:
            block = min(max(deadline - loop.time(), 0.001), BLOCK_SECONDS)
            try:
                await self._ready()
                reply = await self.client.run_blocking(
                    (*command, "BLOCK", max(1, int(block * 1000)), "STREAMS", *streams), block
                )
                raise_if_error(reply)
            except LostError as error:
                await self._pause(pauses, error)
                continue
            self._found()
            if reply or loop.time() >= deadline:
                return reply

    async def _ready(self) -> None:
        if self._is_prepared:
            return
        async with self._preparing:
            if not self._is_prepared:
                await self._prepare(self.client)
                self._is_prepared = True

    async def _pause(self, pauses: "Pauses", error: LostError) -> None:
        self._is_prepared = False
        if not self._is_lost:
            self._is_lost = True
            log.warning("redis gives no answer, repeating", error=str(error))
        await asyncio.sleep(pauses.next())

    def _found(self) -> None:
        if self._is_lost:
            self._is_lost = False
            log.info("redis answers again")


class Pauses:
    def __init__(self) -> None:
        self._seconds = FIRST_PAUSE_SECONDS

    def next(self) -> float:
        seconds = self._seconds
        self._seconds = min(seconds * 2, LONGEST_PAUSE_SECONDS)
        return seconds


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
