"""A leader's writes: all of them, in order, and none of an epoch that is over."""

import pytest

from common.bus import Cursors, Lease, SetStatus, WriteTokens
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from common.messages import RequestId
from scheduler.leadership import LeadershipLostError
from scheduler.writer import WRITES_AT_ONCE, Writer
from tests.common.examples import submit


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus(MemoryServer())


async def lead(bus: MemoryBus) -> Writer:
    lease = await bus.lease_take("s", await bus.lease())
    assert lease is not None
    return Writer(bus, lease.epoch)


async def test_all_are_written_before_it_waits(bus: MemoryBus) -> None:
    writer = await lead(bus)
    count = 2 * WRITES_AT_ONCE + 1
    writes = [SetStatus(f"field-{index}", b"x") for index in range(count)]
    await bus.submit(submit())
    news = await writer.write_and_wait(writes, Cursors(), 0.0)
    assert [read for _, read in news.submits] == [submit()]
    assert len(bus.server.hash("status")) == count


async def test_whoever_was_fenced_leads_no_more(bus: MemoryBus) -> None:
    writer = await lead(bus)
    assert await bus.lease_take("another", Lease("s", writer.epoch, 0)) is not None
    with pytest.raises(LeadershipLostError):
        await writer.write_and_wait([SetStatus("summary", b"{}")], Cursors(), 0.0)


async def test_what_a_journal_refuses_is_told_once(bus: MemoryBus) -> None:
    writer = await lead(bus)
    headless = WriteTokens(RequestId("a.0"), 1, (11,))
    await writer.write_and_wait([headless], Cursors(), 0.0)
    assert writer.take_refused() == [headless]
    assert writer.take_refused() == []
