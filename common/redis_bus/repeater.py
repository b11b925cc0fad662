"""Operations that are repeated until the server has answered them, however long it is away."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from common.redis_bus.client import Client, raise_if_error
from common.redis_bus.connection import LostError
from common.redis_bus.wire import Arg, Command

log = structlog.get_logger()

BLOCK_SECONDS = 1.0
MAX_PIPELINE = 512  # commands of one round trip, so that it is done within its bound
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 1.0

Prepare = Callable[[Client], Awaitable[None]]


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
        """In order; what had no answer, and all that was behind it, is sent again."""
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
        _, reply = await self.pipeline_and_read((), command, block_seconds, *streams)
        return reply

    async def pipeline_and_read(
        self,
        commands: Sequence[Command],
        command: tuple[Arg, ...],
        block_seconds: float,
        *streams: Arg,
    ) -> tuple[list[Any], Any]:
        """As `pipeline`, up to MAX_PIPELINE commands, and then `read`, sent with the last of them.

        The server is woken once for both, and so is whoever waits.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + block_seconds
        replies: list[Any] = []
        pauses = Pauses()
        while True:
            block = min(max(deadline - loop.time(), 0.001), BLOCK_SECONDS)
            xread = (*command, "BLOCK", max(1, int(block * 1000)), "STREAMS", *streams)
            try:
                await self._ready()
                left = [*commands[len(replies) :], xread]
                *fresh, reply = await self.client.run_blocking(left, block)
                for each in fresh:
                    raise_if_error(each)
                    replies.append(each)
                raise_if_error(reply)
            except LostError as error:
                await self._pause(pauses, error)
                continue
            self._found()
            if reply or loop.time() >= deadline:
                return replies, reply

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
