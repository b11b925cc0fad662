"""The contract of the scheduler's writes: journals, owners, plans, logs, what people look at."""

from dataclasses import replace

from common.bus import (
    AddDead,
    AddTimeline,
    CloseLog,
    CloseSteps,
    DropOwner,
    DropShare,
    DropSuspect,
    DropWorker,
    ExpireJournal,
    ExpireWorker,
    Outcome,
    SetOwner,
    SetShare,
    SetStatus,
    SetSuspect,
    Share,
    TrimLog,
    TrimSteps,
    WriteEnd,
    WriteHead,
    WritePlan,
    WriteTokens,
)
from common.entries import plan_fields
from common.messages import (
    FinishReason,
    Journal,
    RequestId,
    Subscribed,
    WorkerId,
)
from tests.common.conftest import BackDoor, Bus, lead
from tests.common.examples import (
    GATEWAY,
    REQUEST,
    WORKER,
    end,
    head,
    hello,
    plan,
    result,
)

OK, FENCED, REFUSED = Outcome.OK, Outcome.FENCED, Outcome.REFUSED


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
    refused = replace(ending, end=end(kept=0, request=RequestId("b.0")))  # and told to nobody
    writes = [refused, WriteHead(head()), ending, ending]
    assert await bus.write(epoch, writes) == [REFUSED, OK, OK, OK]
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


async def test_shares_are_kept_by_tenant(bus: Bus) -> None:
    epoch = await lead(bus)
    writes = [
        SetShare("alice", Share(1.0)),
        SetShare("bob: b", Share(7.25, 0.5)),
        SetShare("alice", Share(3.5, 2.0)),
    ]
    assert await bus.write(epoch, writes) == [OK] * 3
    assert await bus.shares() == {"alice": Share(3.5, 2.0), "bob: b": Share(7.25, 0.5)}
    assert await bus.write(epoch, [DropShare("alice"), DropShare("nobody")]) == [OK] * 2
    assert await bus.shares() == {"bob: b": Share(7.25, 0.5)}


async def test_suspects_are_counted_and_dropped(bus: Bus) -> None:
    epoch = await lead(bus)
    await bus.write(epoch, [WriteHead(head()), SetSuspect(REQUEST, 1), SetSuspect(REQUEST, 2)])
    assert await bus.suspects() == {REQUEST: 2}
    await bus.write(epoch, [DropSuspect(REQUEST)])
    assert await bus.suspects() == {}


async def test_who_has_ended_is_no_suspect_however_late_a_write_lands(bus: Bus) -> None:
    epoch = await lead(bus)
    assert await bus.write(epoch, [SetSuspect(REQUEST, 1)]) == [REFUSED]  # no journal
    story = [WriteHead(head()), SetSuspect(REQUEST, 1), WriteEnd(0, end(kept=0), ())]
    assert await bus.write(epoch, story) == [OK] * 3
    assert await bus.write(epoch, [DropSuspect(REQUEST), SetSuspect(REQUEST, 1)]) == [OK, REFUSED]
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


async def test_an_entry_with_more_in_it_is_another(bus: Bus, back_door: BackDoor) -> None:
    fields = {**plan_fields(plan(1)), b"more": b"1"}
    await back_door.add(f"steps:{WORKER}", "1-0", fields)
    assert await bus.write(await lead(bus), [WritePlan(WORKER, plan(1))]) == [REFUSED]
