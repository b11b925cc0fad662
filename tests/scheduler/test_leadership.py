"""The lease: one leader at a time, whoever stalls."""

import asyncio

import pytest

from common.bus import Lease, SetStatus
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from scheduler.leadership import Leadership, LeadershipLostError
from scheduler.writer import Writer

SECONDS = 0.2


async def test_a_free_lease_is_taken_at_once() -> None:
    bus = MemoryBus(MemoryServer())
    async with asyncio.timeout(SECONDS / 2):
        lease = await Leadership(bus, "a", SECONDS).win()
    assert (lease.holder, lease.epoch) == ("a", 1)


async def test_a_holder_that_shows_life_keeps_it() -> None:
    bus = MemoryBus(MemoryServer())
    leadership = Leadership(bus, "a", SECONDS)
    lease = await leadership.win()
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(leadership.keep(lease))
        other = tasks.create_task(Leadership(bus, "b", SECONDS).win())
        await asyncio.sleep(SECONDS * 3)
        assert not keeping.done()
        assert not other.done()
        keeping.cancel()
        other.cancel()
    assert (await bus.lease()).holder == "a"


async def test_a_holder_that_stalls_is_replaced_and_can_write_nothing() -> None:
    bus = MemoryBus(MemoryServer())
    stalled = await Leadership(bus, "a", SECONDS).win()
    lease = await Leadership(bus, "b", SECONDS).win()
    assert (lease.holder, lease.epoch) == ("b", stalled.epoch + 1)
    with pytest.raises(LeadershipLostError):
        await Writer(bus, stalled.epoch).write([SetStatus("summary", b"{}")])
    with pytest.raises(LeadershipLostError):
        await Leadership(bus, "a", SECONDS).keep(stalled)


async def test_a_holder_that_cannot_renew_stops_before_it_is_replaced() -> None:
    class SilentBus(MemoryBus):
        async def lease_renew(self, lease: Lease) -> Lease | None:
            await asyncio.sleep(60)
            return None

    bus = SilentBus(MemoryServer())
    leadership = Leadership(bus, "a", SECONDS)
    lease = await leadership.win()
    async with asyncio.timeout(SECONDS):
        with pytest.raises(LeadershipLostError):
            await leadership.keep(lease)
