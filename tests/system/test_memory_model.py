"""The model of Redis that the simulation relies on says what a real server says, call by call."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from redis.asyncio import Redis

from common import codec
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer, printed
from common.messages import Ended, FinishReason, Notice, RequestId, Subscribed
from common.redis_bus import RedisBus
from tests.common.conftest import MemoryBackDoor, RedisBackDoor
from tests.system.model_commands import GATEWAYS, Commands, Side
from tests.valkey import ValkeyServer

NUM_CALLS = 150
OWN_IDS = ("requests", "control")  # streams in which the server gives the ids
LAST = Ended(RequestId("last.0"), 0, FinishReason.LENGTH)

Dump = Mapping[str, Any]


@pytest.fixture
async def sides(valkey: ValkeyServer, pool: str) -> AsyncIterator[tuple[Side, Side]]:
    server, redis = MemoryServer(), RedisBus(valkey.url, pool)
    async with Redis.from_url(valkey.url, protocol=2) as client:
        await client.delete("chairlift:gpu:GPU-7")
        yield (
            Side(MemoryBus(server), MemoryBackDoor(server)),
            Side(redis, RedisBackDoor(valkey, pool, client)),
        )
    await redis.aclose()


@pytest.mark.parametrize("seed", range(20))
async def test_both_answer_alike(sides: tuple[Side, Side], seed: int) -> None:
    commands = Commands(seed)
    ears = [[side.bus.notices(gateway) for gateway in GATEWAYS] for side in sides]
    for channel in (*ears[0], *ears[1]):
        assert await anext(channel) == Subscribed()
    for number in range(NUM_CALLS):
        command = commands.next()
        answers = [await command.call(side) for side in sides]
        assert answers[0] == answers[1], f"{number}: {command.what}"
    assert await dump_memory(sides[0]) == await dump_redis(sides[1])
    for side in sides:
        for gateway in GATEWAYS:
            await side.back_door.publish(gateway, codec.encode_ended(LAST))
    heard = [[await heard_on(channel) for channel in channels] for channels in ears]
    assert heard[0] == heard[1]


async def heard_on(channel: AsyncIterator[Notice]) -> list[Notice]:
    heard = []
    while (notice := await anext(channel)) != LAST:
        heard.append(notice)
    await channel.aclose()  # type: ignore[attr-defined]
    return heard


async def dump_memory(side: Side) -> Dump:
    """Of each key: what is in it, and whether it has a time to live."""
    assert isinstance(side.bus, MemoryBus)
    server = side.bus.server
    found: dict[str, Any] = {}
    for key, stream in server.streams.items():
        entries = list(zip(map(printed, stream.ids), stream.fields, strict=True))
        found[key] = _stream(key, entries, printed(stream.last), key in server.expiring)
    for key, fields in server.hashes.items():
        if fields and not key.startswith("gpu:"):
            found[key] = ("hash", fields, key in server.expiring)
    return found


async def dump_redis(side: Side) -> Dump:
    assert isinstance(side.back_door, RedisBackDoor)
    client, prefix = side.back_door.client, side.back_door.prefix
    found: dict[str, Any] = {}
    async for name in client.scan_iter(match=f"{prefix}*"):
        key, expires = name.decode().removeprefix(prefix), await client.ttl(name) >= 0
        if await client.type(name) == b"hash":
            found[key] = ("hash", await client.hgetall(name), expires)
        else:
            entries = [(entry.decode(), fields) for entry, fields in await client.xrange(name)]
            info = await client.xinfo_stream(name)
            found[key] = _stream(key, entries, info["last-generated-id"].decode(), expires)
    return found


def _stream(key: str, entries: list[Any], last: str, expires: bool) -> Any:
    if key in OWN_IDS:
        return ("stream", [fields for _, fields in entries], expires)
    return ("stream", entries, last, expires)
