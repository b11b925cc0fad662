"""A gateway's side of the bus: requests and control in, notices out."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import structlog

from common import codec, entries, hashes
from common.bus import ServerError, Status, UnavailableError
from common.garbage import report
from common.json_values import DecodeError
from common.messages import Control, GatewayId, Notice, RequestId, Submit, Subscribed, WorkerId
from common.redis_bus import wire
from common.redis_bus.client import ANSWER_SECONDS
from common.redis_bus.connection import Connection, LostError
from common.redis_bus.reads import Reads
from common.redis_bus.repeater import Pauses
from common.redis_bus.wire import Arg

log = structlog.get_logger()

GIVE_UP_SECONDS = 10.0  # a client waits
SILENCE_SECONDS = 5.0  # on the channel, before the connection is tried


class GatewaySide(Reads):
    async def submit(self, submit: Submit) -> None:
        fields = wire.flat(entries.submit_fields(submit))
        await self._answered("XADD", self._keys.requests, "*", *fields)

    async def control(self, control: Control) -> None:
        fields = wire.flat(entries.control_fields(control))
        await self._answered(*wire.call("control", (self._keys.control,), *fields))

    async def _answered(self, *command: Arg) -> None:
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await self._redis.call(*command)
        except TimeoutError:
            raise UnavailableError(f"no answer within {GIVE_UP_SECONDS:.0f} s") from None

    async def num_open(self) -> int:
        return int(await self._redis.call("XLEN", self._keys.requests))

    async def beat_gateway(self, gateway: GatewayId, beat: int) -> None:
        value = hashes.gateway_value(beat)
        await self._redis.call(*wire.call("gateway_beat", (self._keys.gateways,), gateway, value))

    async def leave_gateway(self, gateway: GatewayId) -> None:
        await self._redis.call("HDEL", self._keys.gateways, gateway)

    async def secret(self, candidate: bytes) -> bytes:
        command = wire.call("secret", (self._keys.secret,), hashes.SECRET_FIELD, candidate)
        secret: bytes = await self._redis.call(*command)
        return secret

    async def status(self) -> Status:
        value = await self._redis.call("HGET", self._keys.status, hashes.STATUS_FIELD)
        return hashes.read_status(value)

    async def owner(self, request: RequestId) -> WorkerId | None:
        owner = await self._redis.call("HGET", self._keys.owners, request)
        return None if owner is None else WorkerId(owner.decode())

    async def notices(self, gateway: GatewayId) -> AsyncIterator[Notice]:
        channel, pauses = self._keys.tokens(gateway), Pauses()
        is_lost = False
        while True:
            try:
                connection = await self._redis.client.connect()
                async with contextlib.aclosing(connection):
                    connection.send(wire.pack(("SUBSCRIBE", channel)))
                    while True:
                        notice = _notice(channel, await _receive(connection))
                        if notice is not None:
                            pauses, is_lost = Pauses(), False
                            yield notice
            except (LostError, ServerError) as error:
                if not is_lost:
                    log.warning("subscription lost, repeating", error=str(error))
                is_lost = True
            await asyncio.sleep(pauses.next())


async def _receive(connection: Connection) -> Any:
    """The next message. A long silence is tried with PING: a peer that vanished says nothing."""
    replies = await connection.receive(1, SILENCE_SECONDS)
    if replies is None:
        connection.send(wire.pack(("PING",)))
        replies = await connection.receive(1, ANSWER_SECONDS)
    if replies is None:
        raise LostError("no sign of life")
    return replies[0]


def _notice(channel: bytes, reply: Any) -> Notice | None:
    if not isinstance(reply, list) or not reply:
        return None
    if reply[0] == b"subscribe":
        return Subscribed()
    if reply[0] != b"message":
        return None
    try:
        return codec.decode_notice(reply[2])
    except DecodeError as error:
        report(channel.decode(errors="replace"), "message", [reply[2]], error)
        return None
