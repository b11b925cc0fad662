"""The contract of the gateway's face: admission, control, notices and their gaps."""

import asyncio

import pytest

from common.bus import Cursors, DropGateway, Status
from common.codec import encode_ended
from common.memory_bus import MemoryBus
from common.messages import (
    Control,
    ControlKind,
    Ended,
    FinishReason,
    GatewayId,
    Subscribed,
    TokenBatch,
)
from tests.common.conftest import BackDoor, Bus
from tests.common.examples import GATEWAY, REQUEST, WORKER, batch, hello, result, submit

CONTROLS = [
    Control(ControlKind.CANCEL, "a"),
    Control(ControlKind.STOP, "a.0", kept=0),
    Control(ControlKind.STOP, "a.0", kept=5),
    Control(ControlKind.ATTACH, "a.0", gateway=GATEWAY),
    Control(ControlKind.DETACH, "a.0", gateway=GATEWAY),
    Control(ControlKind.HOLD, "a"),
    Control(ControlKind.RELEASE, "a"),
    Control(ControlKind.PRIORITY, "a", priority=-3),
    Control(ControlKind.CANCEL, "tenant:alice"),
    Control(ControlKind.DRAIN, "worker:worker-1"),
    Control(ControlKind.RELEASE, "worker:worker-1"),
    Control(ControlKind.DRAIN, "tenant:alice"),
    Control(ControlKind.WEIGHT, "tenant:alice", weight=0.1),
]


async def test_submissions_are_open_until_they_are_dropped(bus: Bus) -> None:
    assert await bus.num_open() == 0
    await bus.submit(submit("a"))
    await bus.submit(submit("b", n=2))
    assert await bus.num_open() == 2
    news = await bus.news(Cursors(), 1.0)
    assert [read for _, read in news.submits] == [submit("a"), submit("b", n=2)]


async def test_every_control_arrives_as_it_was_sent(bus: Bus) -> None:
    for control in CONTROLS:
        await bus.control(control)
    news = await bus.news(Cursors(), 1.0)
    assert [control for _, control in news.controls] == CONTROLS


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({b"kind": b"cancel", b"request": b"a.0"}, Control(ControlKind.CANCEL, "a.0")),
        ({b"kind": b"drain", b"worker": b"w"}, Control(ControlKind.DRAIN, "worker:w")),
        ({b"kind": b"drain", b"tenant": b"t"}, Control(ControlKind.DRAIN, "tenant:t")),
        (
            {b"kind": b"weight", b"tenant": b"t", b"weight": b"2.5"},
            Control(ControlKind.WEIGHT, "tenant:t", weight=2.5),
        ),
        (
            {b"kind": b"priority", b"request": b"a", b"priority": b"-1"},
            Control(ControlKind.PRIORITY, "a", priority=-1),
        ),
    ],
)
async def test_a_person_writes_control_by_hand(
    bus: Bus, back_door: BackDoor, fields: dict[bytes, bytes], expected: Control
) -> None:
    await back_door.add("control", "*", fields)
    news = await bus.news(Cursors(), 1.0)
    assert [control for _, control in news.controls] == [expected]


async def test_beats_of_gateways_come_and_go(bus: Bus) -> None:
    other = GatewayId("gateway-2")
    await bus.beat_gateway(GATEWAY, 1)
    await bus.beat_gateway(GATEWAY, 2)
    await bus.beat_gateway(other, 7)
    assert await bus.gateways() == {GATEWAY: 2, other: 7}
    await bus.leave_gateway(other)
    lease = await bus.lease_take("s", await bus.lease())
    assert lease is not None
    await bus.write(lease.epoch, [DropGateway(GATEWAY)])
    assert await bus.gateways() == {}


async def test_the_first_secret_stands(bus: Bus) -> None:
    assert await bus.secret(b"first") == b"first"
    assert await bus.secret(b"second") == b"first"
    assert await bus.secret(b"first") == b"first"


async def test_nothing_stands_before_a_scheduler_led(bus: Bus) -> None:
    assert await bus.status() == Status()
    assert await bus.owner(REQUEST) is None
    assert await bus.workers() == {}


async def test_notices_reach_their_gateway_alone_and_in_order(bus: Bus) -> None:
    await bus.register(hello())
    other = bus.notices(GatewayId("gateway-2"))
    mine = bus.notices(GATEWAY)
    assert [await anext(mine), await anext(other)] == [Subscribed(), Subscribed()]
    for step in (1, 2, 3):
        await bus.commit(WORKER, result(step), batch(result(step)))
    got = [await anext(mine) for _ in range(3)]
    assert got == [TokenBatch(result(step).sampled) for step in (1, 2, 3)]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await anext(other)
    await mine.aclose()
    await other.aclose()


async def test_a_torn_subscription_is_told(bus: Bus, back_door: BackDoor) -> None:
    await bus.register(hello())
    notices = bus.notices(GATEWAY)
    assert await anext(notices) == Subscribed()
    await back_door.tear(GATEWAY)
    async with asyncio.timeout(10):
        assert await anext(notices) == Subscribed()
    await bus.commit(WORKER, result(1), batch(result(1)))
    assert await anext(notices) == TokenBatch(result(1).sampled)
    await notices.aclose()


async def test_a_cancelled_subscription_is_gone(bus: Bus) -> None:
    async def listen() -> None:
        async for _ in bus.notices(GATEWAY):
            subscribed.set()

    subscribed = asyncio.Event()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        listener = tasks.create_task(listen())
        await subscribed.wait()
        listener.cancel()
    await bus.register(hello())
    await bus.commit(WORKER, result(1), batch(result(1)))  # to nobody


@pytest.mark.parametrize("kind", ["redis"], indirect=True)
async def test_garbage_on_the_channel_is_passed_over(bus: Bus, back_door: BackDoor) -> None:
    notices = bus.notices(GATEWAY)
    assert await anext(notices) == Subscribed()
    await back_door.publish(GATEWAY, b"\xff")
    ended = Ended(REQUEST, 0, FinishReason.CANCELLED)
    await back_door.publish(GATEWAY, encode_ended(ended))
    assert await anext(notices) == ended
    await notices.aclose()


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_memory_loses_and_repeats_notices_where_a_test_asks(bus: MemoryBus) -> None:
    await bus.register(hello())
    copies = iter([0, 2])
    bus.server.copies = lambda _gateway, _notice: next(copies)
    notices = bus.notices(GATEWAY)
    await anext(notices)
    for step in (1, 2):
        await bus.commit(WORKER, result(step), batch(result(step)))
    assert [await anext(notices), await anext(notices)] == [TokenBatch(result(2).sampled)] * 2
    await notices.aclose()
