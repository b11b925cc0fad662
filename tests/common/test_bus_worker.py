"""The contract of the worker's face: names, plans, the log and its closing."""

import asyncio

import pytest

from common.bus import CloseLog, CloseSteps, Commit, DropWorker, Plans, TrimLog, WritePlan
from common.messages import StepResult, Subscribed, TokenBatch, WorkerId
from tests.common.conftest import BackDoor, Bus, lead
from tests.common.examples import GATEWAY, WORKER, batch, hello, plan, result


async def test_a_worker_registers_and_has_an_empty_log(bus: Bus) -> None:
    assert (await bus.read_log(WORKER, 0)).exists is False
    await bus.register(hello())
    await bus.register(hello())  # its answer was lost
    assert await bus.workers() == {WORKER: hello()}
    log = await bus.read_log(WORKER, 0)
    assert (log.exists, log.closed, log.results) == (True, False, ())


async def test_beat_rewrites_a_field_that_stands(bus: Bus) -> None:
    await bus.register(hello())
    assert await bus.beat(hello(beat=5, leaving=True)) is True
    assert await bus.workers() == {WORKER: hello(beat=5, leaving=True)}


async def test_beat_of_a_worker_that_was_given_up_writes_nothing(bus: Bus) -> None:
    assert await bus.beat(hello()) is False
    await bus.register(hello())
    await bus.write(await lead(bus), [DropWorker(WORKER)])
    assert await bus.beat(hello(beat=1)) is False
    assert await bus.workers() == {}


async def test_opening_does_not_revive_a_closed_log(bus: Bus) -> None:
    await bus.write(await lead(bus), [CloseLog(WORKER)])
    await bus.register(hello())
    assert await bus.commit(WORKER, result(1), {}) is Commit.CLOSED
    assert (await bus.read_log(WORKER, 0)).closed is True


async def test_commits_are_read_in_order_and_after_a_step(bus: Bus) -> None:
    await bus.register(hello())
    results = [result(step) for step in (1, 2, 5)]  # steps that were passed over leave gaps
    for each in results:
        assert await bus.commit(WORKER, each, {}) is Commit.OK
    assert (await bus.read_log(WORKER, 0)).results == tuple(results)
    assert (await bus.read_log(WORKER, 1)).results == tuple(results[1:])
    assert (await bus.read_log(WORKER, 5)).results == ()


async def test_a_repeated_commit_is_a_duplicate_and_publishes_again(bus: Bus) -> None:
    await bus.register(hello())
    notices = bus.notices(GATEWAY)
    assert await anext(notices) == Subscribed()
    first = result(1)
    assert await bus.commit(WORKER, first, batch(first)) is Commit.OK
    assert await bus.commit(WORKER, first, batch(first)) is Commit.DUPLICATE
    assert [await anext(notices), await anext(notices)] == [TokenBatch(first.sampled)] * 2
    assert (await bus.read_log(WORKER, 0)).results == (first,)
    await notices.aclose()


async def test_a_duplicate_is_known_when_its_entry_has_been_trimmed(
    bus: Bus, back_door: BackDoor
) -> None:
    await bus.register(hello())
    await bus.commit(WORKER, result(1), {})
    await bus.write(await lead(bus), [TrimLog(WORKER, before=2)])
    assert await back_door.ids(f"results:{WORKER}") == []
    assert await bus.commit(WORKER, result(1), {}) is Commit.DUPLICATE


@pytest.mark.parametrize("state", ["missing", "closed", "ahead"])
async def test_nothing_is_committed_or_published_where_the_log_takes_nothing(
    bus: Bus, state: str
) -> None:
    if state != "missing":
        await bus.register(hello())
    if state == "closed":
        await bus.write(await lead(bus), [CloseLog(WORKER)])
    if state == "ahead":
        await bus.commit(WORKER, result(2), {})
    before = await bus.read_log(WORKER, 0)
    notices = bus.notices(GATEWAY)
    await anext(notices)
    assert await bus.commit(WORKER, result(1), batch(result(1))) is Commit.CLOSED
    assert await bus.read_log(WORKER, 0) == before
    other = WorkerId("worker-2")
    await bus.register(hello(other))
    await bus.commit(other, result(9), batch(result(9)))
    assert await anext(notices) == TokenBatch(result(9).sampled)  # and nothing before it
    await notices.aclose()


async def test_plans_come_in_order_and_after_a_step(bus: Bus) -> None:
    epoch = await lead(bus)
    await bus.write(epoch, [WritePlan(WORKER, plan(step)) for step in (1, 2, 3)])
    assert await bus.read_plans(WORKER, 1, 0.0) == Plans((plan(2), plan(3)))
    assert await bus.read_plans(WORKER, 3, 0.0) == Plans()


async def test_a_waiting_worker_is_woken_by_a_plan_and_by_closing(bus: Bus) -> None:
    epoch = await lead(bus)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(bus.read_plans(WORKER, 0, 60.0))
        await asyncio.sleep(0.05)
        await bus.write(epoch, [WritePlan(WORKER, plan(1))])
    assert waiting.result() == Plans((plan(1),))
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(bus.read_plans(WORKER, 1, 60.0))
        await asyncio.sleep(0.05)
        await bus.write(epoch, [CloseSteps(WORKER)])
    assert waiting.result() == Plans(closed=True)


async def test_a_cancelled_read_loses_nothing(bus: Bus) -> None:
    epoch = await lead(bus)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await bus.read_plans(WORKER, 0, 60.0)
    await bus.write(epoch, [WritePlan(WORKER, plan(1))])
    assert await bus.read_plans(WORKER, 0, 1.0) == Plans((plan(1),))


async def test_waiting_ends_when_the_time_is_up(bus: Bus) -> None:
    async with asyncio.timeout(5):
        assert await bus.read_plans(WORKER, 0, 0.05) == Plans()


async def test_a_plan_that_cannot_be_read_closes_the_steps(bus: Bus, back_door: BackDoor) -> None:
    await bus.write(await lead(bus), [WritePlan(WORKER, plan(1))])
    await back_door.add(f"steps:{WORKER}", "2-0", {b"plan": b'{"v":3,"step":2}'})
    assert await bus.read_plans(WORKER, 0, 0.0) == Plans((plan(1),), closed=True)


async def test_a_result_that_cannot_be_read_is_passed_over(bus: Bus, back_door: BackDoor) -> None:
    await bus.register(hello())
    await back_door.add(f"results:{WORKER}", "1-0", {b"nonsense": b"1"})
    await bus.commit(WORKER, result(2), {})
    assert (await bus.read_log(WORKER, 0)).results == (result(2),)


async def test_errors_of_rows_travel(bus: Bus) -> None:
    await bus.register(hello())
    failed = StepResult(1, (), 0.5, errors={result(1).sampled[0].request_id: "NaN in logits"})
    await bus.commit(WORKER, failed, {})
    assert (await bus.read_log(WORKER, 0)).results == (failed,)
