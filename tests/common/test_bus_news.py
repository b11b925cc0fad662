"""The contract of what a scheduler reads: news, garbage among it, and what is open."""

import asyncio
from dataclasses import replace

from common.bus import (
    CloseLog,
    CloseSteps,
    Cursors,
    DropControl,
    DropOwner,
    DropSubmit,
    DropWorker,
    ExpireJournal,
    ExpireWorker,
    News,
    Outcome,
    SetOwner,
    Write,
    WriteEnd,
    WriteHead,
    WritePlan,
    WriteTokens,
)
from common.messages import (
    Control,
    ControlKind,
    RequestId,
    SubmissionId,
)
from tests.common.conftest import BackDoor, Bus, lead
from tests.common.examples import (
    GATEWAY,
    REQUEST,
    WORKER,
    batch,
    end,
    head,
    hello,
    plan,
    result,
    submit,
)

OK, FENCED, REFUSED = Outcome.OK, Outcome.FENCED, Outcome.REFUSED


# News


async def test_news_brings_all_that_came_after_the_cursors(bus: Bus) -> None:
    await bus.register(hello())
    await bus.submit(submit())
    await bus.control(Control(ControlKind.CANCEL, "a"))
    await bus.commit(WORKER, result(1), batch(result(1)))
    cursors = Cursors(logs={WORKER: 0})
    news = await bus.news(cursors, 1.0)
    [(entry, read)] = news.submits
    assert read == submit()
    assert [control for _, control in news.controls] == [Control(ControlKind.CANCEL, "a")]
    assert news.results == {WORKER: (result(1),)}
    assert news.garbage == ()
    cursors.advance(news)
    assert cursors.requests == entry
    assert cursors.logs == {WORKER: 1}
    assert await bus.news(cursors, 0.0) == News()


async def test_ids_of_both_streams_are_of_one_clock(bus: Bus) -> None:
    """Whether a submission came before a control entry can be told."""
    for name in ("a", "b", "c"):
        await bus.submit(submit(name))
    await bus.control(Control(ControlKind.CANCEL, "tenant:t"))
    await bus.submit(submit("d"))
    news = await bus.news(Cursors(), 1.0)
    *_, c, d = [int(entry.partition("-")[0]) for entry, _ in news.submits]
    [(entry, _)] = news.controls
    assert c <= int(entry.partition("-")[0]) <= d


async def test_news_tells_that_more_requests_wait(bus: Bus) -> None:
    """Then a control entry may be known before the submission that it means."""
    for index in range(100):
        await bus.submit(replace(submit(), submission_id=SubmissionId(f"s{index}")))
    await bus.control(Control(ControlKind.CANCEL, "s99"))
    cursors, seen = Cursors(), 0
    while True:
        news = await bus.news(cursors, 0)
        cursors.advance(news)
        seen += len(news.submits)
        if not news.more_requests:
            break
        assert seen <= 100
    assert seen == 100


async def test_a_waiting_scheduler_is_woken_by_each_stream(bus: Bus) -> None:
    await bus.register(hello())
    cursors = Cursors(logs={WORKER: 0})
    for wake in (
        lambda: bus.submit(submit()),
        lambda: bus.control(Control(ControlKind.HOLD, "a.0")),
        lambda: bus.commit(WORKER, result(1), {}),
    ):
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(bus.news(cursors, 60.0))
            await asyncio.sleep(0.03)
            await wake()
        assert waiting.result() != News()
        cursors.advance(waiting.result())
    assert await bus.news(cursors, 0.0) == News()


async def test_a_closed_log_is_told_once(bus: Bus) -> None:
    await bus.register(hello())
    await bus.commit(WORKER, result(1), {})
    await bus.write(await lead(bus), [CloseLog(WORKER)])
    cursors = Cursors(logs={WORKER: 0})
    news = await bus.news(cursors, 1.0)
    assert (news.results, news.closed) == ({WORKER: (result(1),)}, {WORKER})
    cursors.advance(news)
    assert cursors.logs == {}


async def test_garbage_is_reported_and_passed(bus: Bus, back_door: BackDoor) -> None:
    await bus.register(hello())
    await back_door.add("requests", "1-0", {b"submit": b"{"})
    await back_door.add("control", "1-0", {b"kind": b"dance", b"request": b"a"})
    await back_door.add(f"results:{WORKER}", "4-0", {b"result": b"[]"})
    cursors = Cursors(logs={WORKER: 0})
    news = await bus.news(cursors, 1.0)
    garbage = {("requests", "1-0"), ("control", "1-0"), (f"results:{WORKER}", "4-0")}
    assert set(news.garbage) == garbage
    assert (news.submits, news.controls, news.results) == ((), (), {})
    cursors.advance(news)
    assert cursors == Cursors("1-0", "1-0", {WORKER: 4})
    await bus.submit(submit())
    assert [read for _, read in (await bus.news(cursors, 1.0)).submits] == [submit()]


async def test_garbage_in_hashes_is_passed_over(bus: Bus, back_door: BackDoor) -> None:
    await bus.register(hello())
    await bus.beat_gateway(GATEWAY, 3)
    for key in ("workers", "gateways", "suspects", "shares"):
        await back_door.set(key, b"\xff", b"\xff")
    await back_door.set("shares", b"alice", b'{"served":null}')
    await back_door.set("status", b"summary", b"\xff")
    assert await bus.workers() == {WORKER: hello()}
    assert await bus.gateways() == {GATEWAY: 3}
    assert await bus.suspects() == {}
    assert await bus.shares() == {}
    assert (await bus.status()).epoch == 0


async def test_all_open_submits_are_read_oldest_first(bus: Bus) -> None:
    names = [f"s{i}" for i in range(150)]  # more than two pages
    for name in names:
        await bus.submit(submit(name))
    cursors, found = Cursors(), []
    while (news := await bus.news(cursors, 0)).requests_cursor is not None:
        found += news.submits
        cursors.advance(news)
    assert [read.submission_id for _, read in found] == names
    await bus.write(await lead(bus), [DropSubmit(entry) for entry, _ in found[1:]])
    assert [read.submission_id for _, read in (await bus.news(Cursors(), 0)).submits] == ["s0"]
    assert await bus.num_open() == 1


async def test_a_whole_life_leaves_nothing_lasting(bus: Bus, back_door: BackDoor) -> None:
    epoch = await lead(bus)
    await bus.register(hello())
    await bus.submit(submit())
    await bus.control(Control(ControlKind.CANCEL, REQUEST))
    news = await bus.news(Cursors(), 1.0)
    entry = news.submits[0][0]
    writes: list[Write] = [
        WriteHead(head(entry=entry)),
        SetOwner(REQUEST, WORKER),
        WritePlan(WORKER, plan(1)),
    ]
    assert set(await bus.write(epoch, writes)) == {OK}
    await bus.commit(WORKER, result(1), {})
    writes = [
        WriteTokens(REQUEST, 1, (11,)),
        WriteEnd(1, end(kept=1), (GATEWAY,)),
        DropOwner(REQUEST),
        DropSubmit(entry),
        DropControl(news.controls[0][0]),
        ExpireJournal(REQUEST, 60.0),
        CloseLog(WORKER),
        CloseSteps(WORKER),
        ExpireWorker(WORKER, 60.0, log=True),
        ExpireWorker(WORKER, 60.0, log=False),
        DropWorker(WORKER),
    ]
    assert set(await bus.write(epoch, writes)) == {OK}
    assert await back_door.lasting() == []
    assert await bus.num_open() == 0


# Writes and news in one


async def test_writes_go_out_before_the_news_are_there(bus: Bus) -> None:
    epoch = await lead(bus)
    await bus.register(hello())
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        asked = bus.write_and_wait(epoch, [WritePlan(WORKER, plan(1))], Cursors(), 60.0)
        waiting = tasks.create_task(asked)
        assert (await bus.read_plans(WORKER, 0, 5.0)).plans == (plan(1),)
        assert not waiting.done()
        await bus.submit(submit())
    outcomes, news = waiting.result()
    assert outcomes == [OK]
    assert [read for _, read in news.submits] == [submit()]


async def test_outcomes_come_without_news_too(bus: Bus) -> None:
    epoch = await lead(bus)
    writes = [WritePlan(WORKER, plan(1)), WritePlan(WORKER, plan(1, RequestId("b.0")))]
    assert await bus.write_and_wait(epoch, writes, Cursors(), 0.0) == ([OK, REFUSED], News())
    assert await bus.write_and_wait(epoch - 1, writes[:1], Cursors(), 0.0) == ([FENCED], News())
    assert await bus.write_and_wait(epoch, (), Cursors(), 0.0) == ([], News())
