"""The contract of the lease, and of what it fences."""

from typing import get_args

import pytest

from common import bus as words
from common.bus import (
    AddDead,
    AddTimeline,
    CloseLog,
    CloseSteps,
    DropControl,
    DropGateway,
    DropOwner,
    DropShare,
    DropSubmit,
    DropSuspect,
    DropWorker,
    ExpireJournal,
    ExpireWorker,
    Lease,
    Outcome,
    SetOwner,
    SetShare,
    SetStatus,
    SetSuspect,
    Share,
    TrimLog,
    TrimSteps,
    Write,
    WriteEnd,
    WriteHead,
    WritePlan,
    WriteTokens,
)
from common.messages import (
    Journal,
    Subscribed,
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


async def test_a_lease_that_was_left_is_nobodys_and_its_epoch_goes_on(bus: Bus) -> None:
    old = await bus.lease_take("one", Lease())
    assert old is not None
    for _ in range(2):
        await bus.lease_leave(old)
        assert await bus.lease() == Lease("", 1, 0)
    assert await bus.lease_renew(old) is None
    assert await bus.lease_take("two", Lease("", 1, 0)) == Lease("two", 2, 0)
    assert await bus.write(old.epoch, [SetStatus("summary", b"{}")]) == [FENCED]


async def test_a_lease_is_left_by_its_holder_alone(bus: Bus) -> None:
    old = await bus.lease_take("one", Lease())
    assert old is not None
    taken = await bus.lease_take("one", old)
    await bus.lease_leave(old)  # of an earlier epoch of its own
    assert await bus.lease() == taken == Lease("one", 2, 0)


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
    SetShare("alice", Share(12.0, 2.0)),
    AddTimeline(1, b"{}"),
    AddDead(1, b"{}"),
    CloseLog(WORKER),
    CloseSteps(WORKER),
    DropOwner(REQUEST),
    DropSuspect(REQUEST),
    DropShare("alice"),
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
    writes: list[Write] = [SetShare("alice", Share(1.0)), WritePlan(WORKER, plan(1))]
    if not isinstance(but, WriteHead):
        writes += [WriteHead(head()), SetSuspect(REQUEST, 3)]
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
        await bus.shares(),
        await bus.status_fields(),
        await back_door.lasting(),
    ]
