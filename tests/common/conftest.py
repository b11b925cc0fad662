"""Both buses, and a back door into what they keep."""

from collections.abc import AsyncIterator, Iterator
from typing import Protocol

import pytest
from redis.asyncio import Redis

from common.bus import Fields
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from common.messages import GatewayId
from common.redis_bus import RedisBus
from common.redis_bus.keys import FIXED
from tests.conftest import leftovers
from tests.valkey import ValkeyServer

Bus = MemoryBus | RedisBus


async def lead(bus: Bus, holder: str = "scheduler-1") -> int:
    """The epoch of a leader who takes the lease now."""
    lease = await bus.lease_take(holder, await bus.lease())
    assert lease is not None
    return lease.epoch


class BackDoor(Protocol):
    """What no role may do: for garbage, deaths and looking in."""

    async def add(self, key: str, entry: str, fields: Fields) -> None: ...

    async def set(self, key: str, field: bytes, value: bytes) -> None: ...

    async def delete(self, key: str) -> None: ...

    async def ids(self, stream: str) -> list[str]: ...

    async def publish(self, gateway: GatewayId, message: bytes) -> None: ...

    async def lasting(self) -> list[str]: ...

    async def tear(self, gateway: GatewayId) -> None:
        """The gateway's subscription is lost, and begins anew."""


class MemoryBackDoor:
    def __init__(self, server: MemoryServer) -> None:
        self.server = server

    async def add(self, key: str, entry: str, fields: Fields) -> None:
        if entry == "*":
            self.server.add_next(key, fields)
        else:
            assert self.server.add(key, entry, fields)

    async def set(self, key: str, field: bytes, value: bytes) -> None:
        self.server.hash(key)[field] = value

    async def delete(self, key: str) -> None:
        self.server.streams.pop(key, None)
        self.server.hashes.pop(key, None)

    async def ids(self, stream: str) -> list[str]:
        return [entry for entry, _ in self.server.stream(stream).after("0-0")]

    async def publish(self, gateway: GatewayId, message: bytes) -> None:
        self.server.publish(gateway, message)

    async def lasting(self) -> list[str]:
        return sorted(self.server.lasting_keys() - set(FIXED))

    async def tear(self, gateway: GatewayId) -> None:
        self.server.resubscribe(gateway)


class RedisBackDoor:
    def __init__(self, server: ValkeyServer, pool: str, client: Redis) -> None:
        self.server, self.pool, self.client = server, pool, client
        self.prefix = f"chairlift:{{{pool}}}:"

    async def add(self, key: str, entry: str, fields: Fields) -> None:
        await self.client.xadd(self.prefix + key, dict(fields), id=entry)

    async def set(self, key: str, field: bytes, value: bytes) -> None:
        await self.client.hset(self.prefix + key, field, value)

    async def delete(self, key: str) -> None:
        await self.client.delete(self.prefix + key)

    async def ids(self, stream: str) -> list[str]:
        return [entry.decode() for entry, _ in await self.client.xrange(self.prefix + stream)]

    async def publish(self, gateway: GatewayId, message: bytes) -> None:
        await self.client.publish(f"{self.prefix}tokens:{gateway}", message)

    async def lasting(self) -> list[str]:
        return leftovers(self.server, self.pool)

    async def tear(self, gateway: GatewayId) -> None:
        await self.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")


@pytest.fixture(params=["memory", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def memory_server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
async def bus(
    kind: str, memory_server: MemoryServer, request: pytest.FixtureRequest, pool: str
) -> AsyncIterator[MemoryBus | RedisBus]:
    """Without the check for leftovers: most tests of the contract stop halfway."""
    if kind == "memory":
        yield MemoryBus(memory_server)
        return
    redis = RedisBus(request.getfixturevalue("valkey").url, pool)
    yield redis
    await redis.aclose()


@pytest.fixture
async def back_door(
    kind: str, memory_server: MemoryServer, request: pytest.FixtureRequest, pool: str
) -> AsyncIterator[BackDoor]:
    if kind == "memory":
        yield MemoryBackDoor(memory_server)
        return
    server = request.getfixturevalue("valkey")
    async with Redis.from_url(server.url, protocol=2) as client:
        yield RedisBackDoor(server, pool, client)


@pytest.fixture
def own_server() -> Iterator[ValkeyServer]:
    """To be killed."""
    valkey = ValkeyServer()
    try:
        yield valkey.start()
    finally:
        valkey.close()
