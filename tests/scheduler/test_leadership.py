"""The lease: one leader at a time, whoever stalls."""

import asyncio

import pytest

from common.bus import Lease, SetStatus
from common.config import SchedulerSettings
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from scheduler.leadership import Leadership, LeadershipLostError
from scheduler.service import SchedulerService
from scheduler.writer import Writer

SECONDS = 0.4


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


async def test_a_holder_stops_where_the_server_forgot_that_it_had_shown_life() -> None:
    """With `appendfsync everysec` a crash brings back what was: it is not what the leader knows."""
    server = MemoryServer()
    bus = MemoryBus(server)
    leadership = Leadership(bus, "a", SECONDS)
    keeping = asyncio.create_task(leadership.keep(await leadership.win()))
    await until_beat(bus, 1)
    on_disk = dict(server.hash("lease"))
    await until_beat(bus, 3)
    assert not keeping.done()
    server.hashes["lease"] = on_disk
    with pytest.raises(LeadershipLostError, match="forgotten"):
        await keeping


async def until_beat(bus: MemoryBus, beat: int) -> None:
    async with asyncio.timeout(10):
        while (await bus.lease()).beat < beat:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(SECONDS / 50)


class StandingBus(MemoryBus):
    """What it is asked to renew or to leave has no answer before the server goes on."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.goes_on = asyncio.Event()

    async def lease_renew(self, lease: Lease) -> Lease | None:
        await self.goes_on.wait()
        return await super().lease_renew(lease)

    async def lease_leave(self, lease: Lease) -> None:
        await self.goes_on.wait()
        await super().lease_leave(lease)


async def test_a_holder_that_nobody_replaced_takes_its_lease_again_at_once() -> None:
    bus = StandingBus(MemoryServer())
    leadership = Leadership(bus, "a", SECONDS)
    first = await leadership.win()
    with pytest.raises(LeadershipLostError):
        await leadership.keep(first)
    bus.goes_on.set()
    assert await bus.lease_renew(first)  # it lands late: the beat is not the one that it knew
    async with asyncio.timeout(SECONDS / 2):
        second = await leadership.win()
    assert (second.holder, second.epoch) == ("a", first.epoch + 1)
    assert await bus.lease_renew(first) is None
    await bus.lease_leave(first)  # neither does this, which comes later still, concern it
    assert await bus.lease() == second
    with pytest.raises(LeadershipLostError):
        await Writer(bus, first.epoch).write([SetStatus("summary", b"{}")])


async def test_a_leader_that_is_told_to_end_is_replaced_at_once_and_can_write_nothing() -> None:
    bus = MemoryBus(MemoryServer())
    old = await lead_and_end(bus, SchedulerSettings(lease_seconds=60.0))
    async with asyncio.timeout(10.0):
        lease = await Leadership(bus, "b", 60.0).win()
    assert (lease.holder, lease.epoch) == ("b", old.epoch + 1)
    with pytest.raises(LeadershipLostError):
        await Writer(bus, old.epoch).write([SetStatus("summary", b"{}")])


async def test_a_leader_ends_soon_though_the_server_does_not_answer() -> None:
    bus = StandingBus(MemoryServer())
    assert await lead_and_end(bus, SchedulerSettings(lease_seconds=SECONDS)) == await bus.lease()


async def lead_and_end(bus: MemoryBus, settings: SchedulerSettings) -> Lease:
    """Of a scheduler that was told to end while it led, what the lease showed before."""
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(10.0):
        leading = tasks.create_task(SchedulerService(bus, settings, "a").run())
        while not (lease := await bus.lease()).holder:  # noqa: ASYNC110 - nothing tells when it leads
            await asyncio.sleep(0.01)
        leading.cancel()
        await asyncio.wait([leading])
    assert leading.cancelled()
    return lease
