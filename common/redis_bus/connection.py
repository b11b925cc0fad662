"""One connection to the server: opened by redis-py, then spoken on by us.

redis-py takes a coroutine or two for each reply. Here hiredis reads what comes where it arrives,
and whoever waits is woken once, when all is there.
"""

import asyncio
from collections import deque
from typing import Any, cast

import hiredis
from redis._parsers import BaseParser
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from common.alarm import Alarm


class LostError(Exception):
    """No answer: what was sent may have been done or not."""


class Connection(asyncio.Protocol):
    """Replies come in the order of what was sent. One task at a time waits for them."""

    def __init__(self, opened: AbstractConnection) -> None:
        """`opened`: connected, and left to us."""
        writer = opened._writer  # redis-py's own parsers take their stream in this way
        assert writer is not None
        self._opened = opened
        self._transport = cast("asyncio.Transport", writer.transport)
        self._reader = hiredis.Reader(replyError=BaseParser.parse_error)
        self._replies: deque[Any] = deque()  # that nobody has taken yet
        self._lost: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._num_wanted = 0  # replies, by the waiter
        self._alarm = Alarm(self._wake)  # for the waiter
        self._transport.set_protocol(self)

    async def exchange(self, packed: bytes, num_replies: int, seconds: float) -> list[Any]:
        """The replies, errors among them. Raises LostError, or RedisError for those that say so.

        After an error, or a cancellation, the connection is of no more use.
        """
        self.send(packed)
        replies = await self.receive(num_replies, seconds)
        if replies is None:
            raise LostError(f"no answer within {seconds:g} s")
        for reply in replies:
            if isinstance(reply, RedisError) and not isinstance(reply, ResponseError):
                raise reply
        return replies

    def send(self, packed: bytes) -> None:
        if self._lost is None:
            self._transport.write(packed)

    async def receive(self, num_replies: int, seconds: float) -> list[Any] | None:
        """The next replies; None if they are not here in time. Raises LostError."""
        if len(self._replies) < num_replies and self._lost is None:
            self._waiter, self._num_wanted = self._loop.create_future(), num_replies
            self._alarm.set(seconds)
            try:
                await self._waiter
            finally:
                self._waiter = None
                self._alarm.clear()
        if len(self._replies) >= num_replies:
            return [self._replies.popleft() for _ in range(num_replies)]
        if self._lost is not None:
            raise LostError(str(self._lost) or "the connection was closed")
        return None

    async def aclose(self) -> None:
        self._alarm.close()
        self._transport.abort()
        await self._opened.disconnect(nowait=True)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._replies.append(reply)
        except hiredis.ProtocolError as error:
            self._lose(error)
        if len(self._replies) >= self._num_wanted:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(exc or ConnectionResetError("the server closed the connection"))

    def _lose(self, error: Exception) -> None:
        self._lost = self._lost or error
        self._transport.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
