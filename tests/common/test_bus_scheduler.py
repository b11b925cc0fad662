"""The contract of the scheduler's face: the lease, fenced writes, news, what a new leader reads."""

import asyncio
from dataclasses import replace
from typing import get_args

import pytest

from common import bus as words
from common.bus import (
    AddDead,
    AddTimeline,
    CloseLog,
    CloseSteps,
    Cursors,
    DropControl,
    DropGateway,
    DropOwner,
    DropSubmit,
    DropSuspect,
    DropWorker,
    ExpireJournal,
    ExpireWorker,
    Lease,
    News,
    Outcome,
    SetOwner,
    SetStatus,
    SetSuspect,
    TrimLog,
    TrimSteps,
    Write,
    WriteEnd,
    WriteHead,
    WritePlan,
    WriteTokens,
)
from common.memory_bus import MemoryBus
from common.messages import (
    Control,
    ControlKind,
    FinishReason,
    Journal,
    RequestId,
    Subscribed,
    WorkerId,
)
from common.redis_bus import RedisBus
from tests.common.conftest import BackDoor
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

Bus = MemoryBus | RedisBus
OK, FENCED, REFUSED = Outcome.OK, Outcome.FENCED, Outcome.REFUSED


async def lead(bus: Bus, holder: str = "scheduler-1") -> int:
    lease = await bus.lease_take(holder, await bus.lease())
    assert lease is not None
    return lease.epoch


# The lease


async def test_the_first_takes_an_empty_lease(bus: Bus) -> None:
    assert await bus.lease() == Lease()
    assert await bus.lease_take("one", Lease()) == Lease("one", 1, 0)
    assert await bus.lease() == Lease("one", 1, 0)


async def test_a_take_whose_answer_was_lost_is_answered_again(bus: Bus) -> None:
    assert await bus.lease_take("one", Lease()) == await bus.lease_take("one", Lease())
    assert await bus.lease() == Lease("one", 1, 0)


async def test_a_lease_that_moved_is_not_taken(bus: Bus) -> None:
    seen = await bus.lease_take("one", Lease())
    assert seen is not None
    assert await bus.lease_renew(seen) == Lease("one", 1, 1)
    assert await bus.lease_take("two", seen) is None
    assert await bus.lease_take("two", Lease()) is None
    assert await bus.lease() == Lease("one", 1, 1)


async def test_a_lease_that_stood_still_is_taken_and_then_lost(bus: Bus) -> None:
    old = await bus.lease_take("one", Lease())
    assert old is not None
    assert await bus.lease_take("two", old) == Lease("two", 2, 0)
    assert await bus.lease_renew(old) is None
    assert await bus.lease() == Lease("two", 2, 0)


async def test_an_epoch_does_not_go_back_when_the_lease_is_gone(
    bus: Bus, back_door: BackDoor
) -> None:
    await lead(bus)
    seen = Lease("two", await lead(bus, "two"), 0)
    await back_door.delete("lease")
    assert await bus.lease_take("three", seen) == Lease("three", 3, 0)


# Fencing

EVERY_WRITE: list[Write] = [
    WritePlan(WORKER, plan(1)),
    WriteHead(head()),
    WriteTokens(REQUEST, 2, (1, 2)),
    WriteEnd(2, end(), (GATEWAY,)),
    SetOwner(REQUEST, WORKER),
    SetSuspect(REQUEST, 1),
    SetStatus("summary", b"{}"),
    AddTimeline(1, b"{}"),
    AddDead(1, b"{}"),
    CloseLog(WORKER),
    CloseSteps(WORKER),
    DropOwner(REQUEST),
    DropSuspect(REQUEST),
    DropSubmit("1-0"),
    DropControl("1-0"),
    DropWorker(WORKER),
    DropGateway(GATEWAY),
    TrimLog(WORKER, 2),
    TrimSteps(WORKER, 2),
    ExpireJournal(REQUEST, 60.0),
    ExpireWorker(WORKER, 60.0, log=True),
]


def test_every_write_is_tried() -> None:
    assert {type(write) for write in EVERY_WRITE} == set(get_args(words.Write))


@pytest.mark.parametrize("write", EVERY_WRITE, ids=lambda write: type(write).__name__)
async def test_a_leader_that_was_replaced_writes_nothing(
    bus: Bus, back_door: BackDoor, write: Write
) -> None:
    old = await lead(bus)
    await everything_stands(bus, back_door, old)
    await lead(bus, "scheduler-2")
    before = await all_that_stands(bus, back_door)
    notices = bus.notices(GATEWAY)
    await anext(notices)
    assert await bus.write(old, [write, write]) == [FENCED, FENCED]
    assert await all_that_stands(bus, back_door) == before
    await back_door.tear(GATEWAY)
    assert await anext(notices) == Subscribed()  # and nothing before it
    await notices.aclose()


async def test_without_a_lease_nothing_is_written(bus: Bus) -> None:
    assert await bus.write(0, [WriteHead(head())]) == [FENCED]
    assert await bus.journal(REQUEST) == Journal(None)


@pytest.mark.parametrize("write", EVERY_WRITE, ids=lambda write: type(write).__name__)
async def test_a_write_whose_answer_was_lost_lands_once(
    bus: Bus, back_door: BackDoor, write: Write
) -> None:
    epoch = await lead(bus)
    await everything_stands(bus, back_door, epoch, but=write)
    before = await all_that_stands(bus, back_door)
    assert await bus.write(epoch, [write]) == [OK]
    landed = await all_that_stands(bus, back_door)
    assert landed != before
    assert await bus.write(epoch, [write]) == [OK]
    assert await all_that_stands(bus, back_door) == landed


async def everything_stands(
    bus: Bus, back_door: BackDoor, epoch: int, but: Write | None = None
) -> None:
    """A pool in the middle of its work, so that each write finds something to change."""
    await bus.register(hello())
    await bus.commit(WORKER, result(1), {})
    await back_door.add("requests", "1-0", {b"id": b"a"})
    await back_door.add("control", "1-0", {b"kind": b"hold", b"request": b"a"})
    await bus.beat_gateway(GATEWAY, 1)
    writes: list[Write] = [SetSuspect(REQUEST, 3), WritePlan(WORKER, plan(1))]
    if not isinstance(but, WriteHead):
        writes.append(WriteHead(head()))
        if not isinstance(but, SetOwner):
            writes.append(SetOwner(REQUEST, WORKER))
    if isinstance(but, WriteEnd):
        writes.append(WriteTokens(REQUEST, 2, (1, 2)))
    if isinstance(but, WritePlan):
        writes.pop(1)
    assert set(await bus.write(epoch, writes)) == {OK}


async def all_that_stands(bus: Bus, back_door: BackDoor) -> list[object]:
    streams = ["requests", "control", f"steps:{WORKER}", f"results:{WORKER}", f"journal:{REQUEST}"]
    return [
        *[await back_door.ids(stream) for stream in (*streams, "timeline", "dead")],
        await bus.workers(),
        await bus.gateways(),
        await bus.owners(),
        await bus.suspects(),
        await bus.status_fields(),
        await back_door.lasting(),
    ]


# Journals


async def test_a_journal_gathers_head_tokens_and_end(bus: Bus) -> None:
    epoch = await lead(bus)
    assert (
        await bus.write(
            epoch,
            [
                WriteHead(head()),
                WriteTokens(REQUEST, 2, (5, 6)),
                WriteTokens(REQUEST, 3, (7,)),
                WriteEnd(3, end(kept=3), ()),
            ],
        )
        == [OK] * 4
    )
    expected = Journal(head(), (5, 6, 7), end(kept=3))
    assert await bus.journal(REQUEST) == expected
    missing = RequestId("b.0")
    assert await bus.journals([missing, REQUEST]) == [Journal(None), expected]


async def test_another_head_is_refused(bus: Bus) -> None:
    epoch = await lead(bus)
    copy = head(entry="2-0")
    assert await bus.write(epoch, [WriteHead(head()), WriteHead(copy)]) == [OK, REFUSED]
    assert (await bus.journal(REQUEST)).head == head()


async def test_a_journal_begins_with_its_head(bus: Bus, back_door: BackDoor) -> None:
    epoch = await lead(bus)
    writes = [WriteTokens(REQUEST, 1, (5,)), WriteEnd(0, end(kept=0), ())]
    assert await bus.write(epoch, writes) == [REFUSED, REFUSED]
    assert await back_door.lasting() == []


async def test_other_tokens_at_the_same_place_are_refused(bus: Bus) -> None:
    epoch = await lead(bus)
    await bus.write(epoch, [WriteHead(head()), WriteTokens(REQUEST, 2, (5, 6))])
    others = [
        WriteTokens(REQUEST, 2, (5, 7)),
        WriteTokens(REQUEST, 1, (5,)),
    ]
    assert await bus.write(epoch, others) == [REFUSED, REFUSED]
    assert (await bus.journal(REQUEST)).tokens == (5, 6)


async def test_nothing_comes_after_an_end(bus: Bus) -> None:
    epoch = await lead(bus)
    await bus.write(epoch, [WriteHead(head()), WriteEnd(0, end(kept=0), ())])
    other = replace(end(kept=0), reason=FinishReason.ERROR, error="no")
    writes = [WriteTokens(REQUEST, 1, (5,)), WriteEnd(0, other, ()), WriteEnd(1, other, ())]
    assert await bus.write(epoch, writes) == [REFUSED] * 3
    assert await bus.journal(REQUEST) == Journal(head(), (), end(kept=0))


async def test_an_end_is_told_to_all_its_gateways_each_time_it_is_written(bus: Bus) -> None:
    epoch = await lead(bus)
    other = type(GATEWAY)("gateway-2")
    channels = [bus.notices(GATEWAY), bus.notices(other)]
    assert [await anext(channel) for channel in channels] == [Subscribed(), Subscribed()]
    ending = WriteEnd(0, end(kept=0), (GATEWAY, other))
    assert await bus.write(epoch, [WriteHead(head()), ending, ending]) == [OK] * 3
    refused = replace(ending, end=end(kept=0, request=RequestId("b.0")))
    assert await bus.write(epoch, [refused]) == [REFUSED]
    told = [[await anext(channel), await anext(channel)] for channel in channels]
    assert told == [[end(kept=0)] * 2] * 2
    for channel in channels:
        await channel.aclose()


async def test_a_journal_with_a_hole_is_read_up_to_it(bus: Bus, back_door: BackDoor) -> None:
    epoch = await lead(bus)
    await bus.write(epoch, [WriteHead(head()), WriteTokens(REQUEST, 1, (5,))])
    await back_door.add(f"journal:{REQUEST}", "2-0", {b"tokens": b"garbage"})
    await bus.write(epoch, [WriteTokens(REQUEST, 3, (7,))])
    assert await bus.journal(REQUEST) == Journal(head(), (5,))


async def test_journals_without_a_time_to_live_are_found(bus: Bus) -> None:
    epoch = await lead(bus)
    requests = [RequestId(f"r{i}.0") for i in range(3)]
    await bus.write(epoch, [WriteHead(head(request)) for request in requests])
    await bus.write(epoch, [ExpireJournal(requests[1], 60.0)])
    assert sorted(await bus.unexpired_journals()) == [requests[0], requests[2]]


# Owners and suspects


async def test_an_owner_has_an_open_log_and_a_journal_without_end(bus: Bus) -> None:
    epoch = await lead(bus)
    own = SetOwner(REQUEST, WORKER)
    assert await bus.write(epoch, [own]) == [REFUSED]  # neither
    await bus.register(hello())
    assert await bus.write(epoch, [own]) == [REFUSED]  # no journal
    assert await bus.write(epoch, [WriteHead(head()), own]) == [OK, OK]
    assert await bus.owner(REQUEST) == WORKER
    assert await bus.owners() == {REQUEST: WORKER}
    other = WorkerId("worker-2")
    assert await bus.write(epoch, [SetOwner(REQUEST, other)]) == [REFUSED]  # no log
    await bus.register(hello(other))
    assert await bus.write(epoch, [CloseLog(other), SetOwner(REQUEST, other)]) == [OK, REFUSED]
    await bus.write(epoch, [DropOwner(REQUEST)])
    assert await bus.owner(REQUEST) is None
    assert await bus.write(epoch, [WriteEnd(0, end(kept=0), ()), own]) == [OK, REFUSED]
    assert await bus.owners() == {}


async def test_suspects_are_counted_and_dropped(bus: Bus) -> None:
    epoch = await lead(bus)
    await bus.write(epoch, [SetSuspect(REQUEST, 1), SetSuspect(REQUEST, 2)])
    assert await bus.suspects() == {REQUEST: 2}
    await bus.write(epoch, [DropSuspect(REQUEST)])
    assert await bus.suspects() == {}


# Plans, logs, and what people look at


async def test_another_plan_under_the_same_step_is_refused(bus: Bus) -> None:
    epoch = await lead(bus)
    await bus.write(epoch, [WritePlan(WORKER, plan(2))])
    others = [WritePlan(WORKER, plan(2, RequestId("b.0"))), WritePlan(WORKER, plan(1))]
    assert await bus.write(epoch, others) == [REFUSED, REFUSED]
    await bus.write(epoch, [CloseSteps(WORKER)])
    assert await bus.write(epoch, [WritePlan(WORKER, plan(3))]) == [REFUSED]
    assert (await bus.read_plans(WORKER, 0, 0.0)).plans == (plan(2),)


async def test_trimming_keeps_what_is_not_before_and_the_closing(
    bus: Bus, back_door: BackDoor
) -> None:
    epoch = await lead(bus)
    await bus.register(hello())
    for step in (1, 2, 3):
        await bus.commit(WORKER, result(step), {})
    await bus.write(epoch, [WritePlan(WORKER, plan(step)) for step in (1, 2, 3)])
    await bus.write(epoch, [TrimLog(WORKER, 3), TrimSteps(WORKER, 2)])
    assert (await bus.read_log(WORKER, 0)).results == (result(3),)
    assert (await bus.read_plans(WORKER, 0, 0.0)).plans == (plan(2), plan(3))
    await bus.write(epoch, [CloseLog(WORKER), TrimLog(WORKER, 99)])
    log = await bus.read_log(WORKER, 0)
    assert (log.results, log.closed, log.exists) == ((), True, True)


async def test_a_lost_worker_leaves_nothing_lasting(bus: Bus, back_door: BackDoor) -> None:
    epoch = await lead(bus)
    await bus.register(hello())
    await bus.write(epoch, [WritePlan(WORKER, plan(1))])
    gone = [CloseLog(WORKER), CloseSteps(WORKER)]
    gone += [ExpireWorker(WORKER, 60.0, log=log) for log in (True, False)]
    assert set(await bus.write(epoch, [*gone, DropWorker(WORKER)])) == {OK}
    assert await back_door.lasting() == []
    assert await bus.workers() == {}


async def test_status_timeline_and_dead_are_read_back(bus: Bus) -> None:
    epoch = await lead(bus)
    status = b'{"epoch":1,"beat":4,"steps":9,"tokens_per_second":1.5}'
    await bus.write(
        epoch,
        [
            SetStatus("summary", status),
            SetStatus("other", b"[]"),
            *[AddTimeline(index, b'{"step":%d}' % index) for index in (1, 2, 3)],
            AddDead(1, b'{"request":"a.0"}'),
        ],
    )
    assert await bus.status_fields() == {"summary": status, "other": b"[]"}
    read = await bus.status()
    assert (read.epoch, read.beat, read.steps, read.tokens_per_second) == (1, 4, 9, 1.5)
    assert await bus.recent("timeline", 2) == [
        (f"{epoch}-2", {b"json": b'{"step":2}'}),
        (f"{epoch}-3", {b"json": b'{"step":3}'}),
    ]
    assert await bus.length("dead") == 1


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
    for key in ("workers", "gateways", "suspects"):
        await back_door.set(key, b"\xff", b"\xff")
    await back_door.set("status", b"summary", b"\xff")
    assert await bus.workers() == {WORKER: hello()}
    assert await bus.gateways() == {GATEWAY: 3}
    assert await bus.suspects() == {}
    assert (await bus.status()).epoch == 0


async def test_all_open_submits_are_read_oldest_first(bus: Bus, back_door: BackDoor) -> None:
    names = [f"s{i}" for i in range(300)]  # more than a page
    for name in names:
        await bus.submit(submit(name))
    await back_door.add("requests", "*", {b"submit": b"{"})
    found = await bus.open_submits()
    assert [read.submission_id for _, read in found] == names
    await bus.write(await lead(bus), [DropSubmit(entry) for entry, _ in found[1:]])
    assert [read.submission_id for _, read in await bus.open_submits()] == ["s0"]
    assert await bus.num_open() == 2  # with the garbage


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
