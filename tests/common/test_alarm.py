"""An alarm rings at the time that was set last, once, and not when it was cleared."""

import asyncio

from common.alarm import Alarm


async def test_it_rings_once_when_it_is_due() -> None:
    rung: list[float] = []
    loop = asyncio.get_running_loop()
    alarm = Alarm(lambda: rung.append(loop.time()))
    began = loop.time()
    alarm.set(0.02)
    await asyncio.sleep(0.1)
    assert len(rung) == 1
    assert rung[0] - began >= 0.019


async def test_set_again_it_waits_longer() -> None:
    rung: list[float] = []
    loop = asyncio.get_running_loop()
    alarm = Alarm(lambda: rung.append(loop.time()))
    began = loop.time()
    for _ in range(5):
        alarm.set(0.1)
        await asyncio.sleep(0.03)
    await asyncio.sleep(0.15)
    assert len(rung) == 1
    assert rung[0] - began >= 4 * 0.03 + 0.099


async def test_set_for_earlier_it_rings_earlier() -> None:
    rung = asyncio.Event()
    alarm = Alarm(rung.set)
    alarm.set(60.0)
    alarm.set(0.01)
    async with asyncio.timeout(5):
        await rung.wait()


async def test_cleared_or_closed_it_does_not_ring() -> None:
    rung: list[int] = []
    cleared, closed = Alarm(lambda: rung.append(1)), Alarm(lambda: rung.append(2))
    cleared.set(0.01)
    cleared.clear()
    closed.set(0.01)
    closed.close()
    await asyncio.sleep(0.05)
    assert not rung
    cleared.set(0.01)
    await asyncio.sleep(0.05)
    assert rung == [1]
