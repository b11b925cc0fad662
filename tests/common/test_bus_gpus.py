"""The contract of GPUs' leases, which all pools of a server share."""

import uuid

import pytest

from common.bus import Lease
from common.memory_bus import MemoryBus
from common.redis_bus import RedisBus
from tests.common.conftest import Bus
from tests.valkey import ValkeyServer


@pytest.fixture
def gpu() -> str:
    """One that no other test has, for Redis keeps it."""
    return f"GPU-{uuid.uuid4()}"


async def test_a_gpu_that_nobody_held_is_taken(bus: Bus, gpu: str) -> None:
    assert await bus.gpu_leases([gpu, gpu]) == [Lease(), Lease()]
    assert await bus.gpu_take(gpu, "one", Lease()) == Lease("one", 1, 0)
    assert await bus.gpu_take(gpu, "one", Lease()) == Lease("one", 1, 0)  # asked again
    assert await bus.gpu_leases([gpu]) == [Lease("one", 1, 0)]


async def test_a_gpu_that_shows_life_is_not_taken(bus: Bus, gpu: str) -> None:
    seen = await bus.gpu_take(gpu, "one", Lease())
    assert seen
    assert await bus.gpu_renew(gpu, seen) == Lease("one", 1, 1)
    assert await bus.gpu_take(gpu, "two", seen) is None
    assert await bus.gpu_leases([gpu]) == [Lease("one", 1, 1)]


async def test_whoever_lost_a_gpu_hears_of_it(bus: Bus, gpu: str) -> None:
    old = await bus.gpu_take(gpu, "one", Lease())
    assert old
    assert await bus.gpu_take(gpu, "two", old) == Lease("two", 2, 0)
    assert await bus.gpu_renew(gpu, old) is None
    await bus.gpu_leave(gpu, old)  # it is not its to leave
    assert await bus.gpu_leases([gpu]) == [Lease("two", 2, 0)]


async def test_a_gpu_that_was_left_is_taken_at_once_and_the_epoch_goes_on(
    bus: Bus, gpu: str
) -> None:
    lease = await bus.gpu_take(gpu, "one", Lease())
    assert lease
    for _ in range(2):
        await bus.gpu_leave(gpu, lease)
        assert await bus.gpu_leases([gpu]) == [Lease("", 1, 0)]
    assert await bus.gpu_renew(gpu, lease) is None
    assert await bus.gpu_take(gpu, "two", Lease("", 1, 0)) == Lease("two", 2, 0)


async def test_gpus_are_shared_by_pools(valkey: ValkeyServer, pool: str, gpu: str) -> None:
    one, two = RedisBus(valkey.url, pool), RedisBus(valkey.url, f"{pool}-2")
    lease = await one.gpu_take(gpu, "one", Lease())
    assert await two.gpu_leases([gpu]) == [lease]
    await one.aclose()
    await two.aclose()


async def test_a_gpus_lease_is_not_the_leaders(bus: MemoryBus | RedisBus) -> None:
    await bus.gpu_take("lease", "one", Lease())
    assert await bus.lease() == Lease()
