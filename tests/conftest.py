"""What all tests share: switches that must stand before imports, and the buses."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import uuid
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from common.redis_bus import RedisBus
from common.redis_bus.keys import FIXED
from tests.valkey import ValkeyServer

# A busy machine is no failure.
settings.register_profile("chairlift", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("chairlift")

MakeRedisBus = Callable[[], RedisBus]
MakeMemoryBus = Callable[[], MemoryBus]


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """One server for all tests: appendonly, appendfsync always."""
    server = ValkeyServer()
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def pool() -> str:
    """A fresh one for each test."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def redis_bus(valkey: ValkeyServer, pool: str) -> AsyncIterator[MakeRedisBus]:
    """Buses of one pool. At the end nothing lasting may be left in it but the fixed keys."""
    buses: list[RedisBus] = []

    def make() -> RedisBus:
        buses.append(RedisBus(valkey.url, pool))
        return buses[-1]

    yield make
    for bus in buses:
        await bus.aclose()
    assert leftovers(valkey, pool) == []


@pytest.fixture
async def memory_bus() -> AsyncIterator[MakeMemoryBus]:
    """Buses of one server. At the end nothing lasting may be left in it but the fixed keys."""
    server = MemoryServer()
    yield lambda: MemoryBus(server)
    streams = [key for key in ("requests", "control") if server.stream(key).ids]
    assert sorted(server.lasting_keys() - set(FIXED)) + streams == []


@pytest.fixture(params=["memory", "redis"])
def bus(request: pytest.FixtureRequest) -> MemoryBus | RedisBus:
    make: MakeMemoryBus | MakeRedisBus = request.getfixturevalue(f"{request.param}_bus")
    return make()


def leftovers(server: ValkeyServer, pool: str) -> list[str]:
    """Keys of a pool that will never go away, and streams that should be empty."""
    prefix = f"chairlift:{{{pool}}}:"
    with server.client() as client:
        lasting = [
            key.decode().removeprefix(prefix)
            for key in client.scan_iter(match=f"{prefix}*")
            if client.ttl(key) == -1
        ]
        open_streams = [key for key in ("requests", "control") if client.xlen(prefix + key)]
    return sorted(set(lasting) - set(FIXED)) + open_streams
