"""What only Redis can do to the bus: die, come back empty, be full, say nothing."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator

import pytest

from common.bus import (
    AddTimeline,
    CloseLog,
    Commit,
    Cursors,
    DropOwner,
    ExpireJournal,
    ExpireWorker,
    FullError,
    Outcome,
    SetOwner,
    SetStatus,
    UnavailableError,
    WriteEnd,
    WriteHead,
    WritePlan,
    WriteTokens,
)
from common.messages import Control, ControlKind, GatewayId, Subscribed, TokenBatch
from common.redis_bus import RedisBus, client, gateway, repeater
from tests.common.conftest import lead
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
from tests.conftest import leftovers
from tests.valkey import ValkeyServer


@pytest.fixture
async def bus(own_server: ValkeyServer) -> AsyncIterator[RedisBus]:
    redis = RedisBus(own_server.url, "own")
    await redis.connect()
    yield redis
    await redis.aclose()


async def test_acknowledged_writes_survive_a_kill_and_the_rest_lands_once(
    bus: RedisBus, own_server: ValkeyServer
) -> None:
    """The server is killed twice under commits that never stop; each lands exactly once."""
    await bus.register(hello())

    async def commit_all() -> None:
        for step in range(1, 301):
            outcome = await bus.commit(WORKER, result(step), batch(result(step)))
            assert outcome in (Commit.OK, Commit.DUPLICATE)
            if step in milestones:
                milestones[step].set()

    async def kill_twice() -> None:
        for reached in milestones.values():
            await reached.wait()
            own_server.kill()
            await asyncio.sleep(0.1)
            await asyncio.to_thread(own_server.start)

    milestones = {step: asyncio.Event() for step in (50, 150)}
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(commit_all())
        tasks.create_task(kill_twice())
    log = await bus.read_log(WORKER, 0)
    assert log.results == tuple(result(step) for step in range(1, 301))


async def test_blocked_readers_go_on_after_a_restart(
    bus: RedisBus, own_server: ValkeyServer
) -> None:
    epoch = await lead(bus)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        plans = tasks.create_task(bus.read_plans(WORKER, 0, 60.0))
        news = tasks.create_task(bus.news(Cursors(), 60.0))
        await asyncio.sleep(0.1)
        own_server.kill()
        await asyncio.to_thread(own_server.start)
        await bus.submit(submit())
        assert await bus.write(epoch, [WritePlan(WORKER, plan(1))]) == [Outcome.OK]
    assert plans.result().plans == (plan(1),)
    assert [read for _, read in news.result().submits] == [submit()]


async def test_writes_that_wait_for_news_survive_a_restart(
    bus: RedisBus, own_server: ValkeyServer
) -> None:
    epoch = await lead(bus)
    writes = [WritePlan(WORKER, plan(1)), SetStatus("summary", b"{}")]
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(bus.write_and_wait(epoch, writes, Cursors(), 60.0))
        await asyncio.sleep(0.1)
        own_server.kill()
        await asyncio.to_thread(own_server.start)
        await bus.submit(submit())
    outcomes, news = waiting.result()
    assert outcomes == [Outcome.OK] * 2
    assert [read for _, read in news.submits] == [submit()]
    assert (await bus.read_plans(WORKER, 0, 0.0)).plans == (plan(1),)


async def test_a_subscriber_hears_of_a_restart(bus: RedisBus, own_server: ValkeyServer) -> None:
    await bus.register(hello())
    notices = bus.notices(GATEWAY)
    assert await anext(notices) == Subscribed()
    own_server.kill()
    await asyncio.to_thread(own_server.start)
    async with asyncio.timeout(30):
        assert await anext(notices) == Subscribed()
        await bus.commit(WORKER, result(1), batch(result(1)))
        assert await anext(notices) == TokenBatch(result(1).sampled)
    await notices.aclose()


async def test_silence_is_no_loss_as_long_as_the_server_lives(
    bus: RedisBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "SILENCE_SECONDS", 0.02)
    await bus.register(hello())
    notices = bus.notices(GATEWAY)
    assert await anext(notices) == Subscribed()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(anext(notices))
        await asyncio.sleep(0.2)
        await bus.commit(WORKER, result(1), batch(result(1)))
    assert waiting.result() == TokenBatch(result(1).sampled)
    await notices.aclose()


async def test_a_server_that_stands_still_is_a_gap(
    bus: RedisBus, own_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "SILENCE_SECONDS", 0.05)
    monkeypatch.setattr(gateway, "ANSWER_SECONDS", 0.2)
    notices = bus.notices(GATEWAY)
    assert await anext(notices) == Subscribed()
    own_server.pause()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(anext(notices))
        await asyncio.sleep(0.5)
        own_server.resume()
    assert waiting.result() == Subscribed()
    await notices.aclose()


async def test_a_long_pipeline_takes_several_round_trips(
    bus: RedisBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeater, "MAX_PIPELINE", 3)
    epoch = await lead(bus)
    writes = [WritePlan(WORKER, plan(step)) for step in range(1, 9)]
    assert await bus.write(epoch, writes) == [Outcome.OK] * 8
    assert len((await bus.read_plans(WORKER, 0, 0.0)).plans) == 8


async def test_the_check_for_leftovers_finds_them(bus: RedisBus, own_server: ValkeyServer) -> None:
    await bus.register(hello())
    await bus.submit(submit())
    assert leftovers(own_server, "own") == [f"results:{WORKER}", "requests"]


async def test_functions_are_loaded_again_where_they_are_missing(
    bus: RedisBus, own_server: ValkeyServer
) -> None:
    with own_server.client() as direct:
        direct.execute_command("FUNCTION", "FLUSH")
        direct.flushall()
    await bus.register(hello())
    assert await bus.commit(WORKER, result(1), {}) is Commit.OK


async def test_another_version_of_the_functions_is_replaced(own_server: ValkeyServer) -> None:
    old = (
        "#!lua name=chairlift\n"
        "redis.register_function('chairlift_commit', function() return 'OLD' end)"
    )
    with own_server.client() as direct:
        direct.function_load(old, replace=True)
    redis = RedisBus(own_server.url, "own")
    await redis.connect()
    assert await redis.commit(WORKER, result(1), {}) is Commit.CLOSED
    await redis.aclose()


async def test_a_full_server_refuses_new_work_and_lets_the_rest_finish(
    bus: RedisBus, own_server: ValkeyServer
) -> None:
    epoch = await lead(bus)
    await bus.register(hello())
    await bus.submit(submit())
    with own_server.client() as direct:
        direct.config_set("maxmemory", "1")
    with pytest.raises(FullError):
        await bus.submit(submit("b"))
    assert await bus.num_open() == 1
    lease = await bus.lease()
    assert await bus.lease_renew(lease) is not None
    assert await bus.beat(hello(beat=1)) is True
    await bus.beat_gateway(GATEWAY, 1)
    await bus.control(Control(ControlKind.CANCEL, "a"))
    assert await bus.commit(WORKER, result(1), batch(result(1))) is Commit.OK
    writes = [
        WriteHead(head()),
        WriteTokens(REQUEST, 1, (11,)),
        WriteEnd(1, end(kept=1), (GATEWAY,)),
        WritePlan(WORKER, plan(2)),
        SetStatus("summary", b"{}"),
        AddTimeline(1, b"{}"),
    ]
    assert await bus.write(epoch, writes) == [Outcome.OK] * len(writes)


async def test_a_client_does_not_wait_for_ever(
    bus: RedisBus, own_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "GIVE_UP_SECONDS", 0.2)
    own_server.kill()
    with pytest.raises(UnavailableError):
        await bus.submit(submit())
    with pytest.raises(UnavailableError):
        await bus.control(Control(ControlKind.CANCEL, "a"))


async def test_timeline_and_dead_are_bounded(own_server: ValkeyServer) -> None:
    redis = RedisBus(own_server.url, "own", max_shown=100)
    epoch = await lead(redis)
    await redis.write(epoch, [AddTimeline(index, b"{}") for index in range(1, 1001)])
    assert 100 <= await redis.length("timeline") <= 250  # trimmed in whole nodes
    await redis.aclose()


async def test_a_peer_that_says_nothing_is_given_up(
    own_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is late is no answer; the command is sent again on a new connection."""
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.2)
    own_server_address = str(own_server.socket)
    path = str(own_server.folder / "p")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        silent = threading.Thread(target=_first_is_silent, args=(listener, own_server_address))
        silent.start()
        redis = RedisBus(own_server.url.replace(own_server_address, path), "own")
        async with asyncio.timeout(20):
            await redis.connect()
            assert await redis.num_open() == 0
        await redis.aclose()
        await asyncio.to_thread(silent.join)


def _first_is_silent(listener: socket.socket, address: str) -> None:
    """The first connection is never answered, the second is passed on to the server."""
    first, _ = listener.accept()
    second, _ = listener.accept()
    with first, second, socket.socket(socket.AF_UNIX) as onward:
        onward.connect(address)
        back = threading.Thread(target=_pass_on, args=(onward, second))
        back.start()
        _pass_on(second, onward)
        onward.shutdown(socket.SHUT_RDWR)
        back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    while data := source.recv(65536):
        target.sendall(data)


async def test_the_append_only_file_holds_single_writes_alone(
    bus: RedisBus, own_server: ValkeyServer
) -> None:
    """No transaction in it, so that it may end anywhere; and what was published is not in it."""
    epoch = await lead(bus)
    await bus.register(hello())
    await bus.control(Control(ControlKind.CANCEL, "a"))
    await bus.commit(WORKER, result(1), batch(result(1)))
    writes = [
        WriteHead(head()),
        SetOwner(REQUEST, WORKER),
        WriteEnd(0, end(kept=0), (GATEWAY, GatewayId("gateway-2"))),
        WritePlan(WORKER, plan(1)),
        AddTimeline(1, b"{}"),
        DropOwner(REQUEST),
        CloseLog(WORKER),
    ]
    assert await bus.write(epoch, writes) == [Outcome.OK] * len(writes)
    [log] = (own_server.folder / "appendonlydir").glob("*.incr.aof")
    commands = log.read_bytes().upper()
    assert commands.count(b"\r\nXADD\r\n") == 8
    assert commands.count(b"\r\nHSET\r\n") == 3  # lease, worker, owner
    for unwanted in (b"MULTI", b"EXEC", b"PUBLISH", b"FCALL"):
        assert b"\r\n" + unwanted + b"\r\n" not in commands


async def test_times_to_live_are_in_seconds(bus: RedisBus, own_server: ValkeyServer) -> None:
    epoch = await lead(bus)
    await bus.register(hello())
    writes = [
        WriteHead(head()),
        ExpireJournal(REQUEST, 60.0),
        ExpireWorker(WORKER, 0.5, log=True),
    ]
    assert await bus.write(epoch, writes) == [Outcome.OK] * 3
    with own_server.client() as direct:
        prefix = "chairlift:{own}:"
        assert 50_000 < direct.pttl(f"{prefix}journal:{REQUEST}") <= 60_000
        assert 0 < direct.pttl(f"{prefix}results:{WORKER}") <= 500


async def test_the_answer_to_a_cancelled_call_reaches_nobody(
    bus: RedisBus, own_server: ValkeyServer
) -> None:
    await bus.submit(submit())
    own_server.pause()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await bus.num_open()
    own_server.resume()
    assert await bus.owner(REQUEST) is None
    assert await bus.num_open() == 1


async def test_whoever_is_cancelled_while_it_connects_ends(own_server: ValkeyServer) -> None:
    """At each turn of the loop on the way: one that goes on would never be stopped."""
    for turns in range(200):
        talker = client.Client(own_server.url)
        call = asyncio.create_task(talker.run([("PING",)]))
        for _ in range(turns):
            await asyncio.sleep(0)
        if call.done():
            await talker.aclose()
            return
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await talker.aclose()
    raise AssertionError("never connected")
