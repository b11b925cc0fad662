"""Scheduler and worker services on the bus in memory: every request ends once, with its tokens."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from common.messages import Control, ControlKind, Ending, FinishReason, GatewayId, request_id
from gpu_worker.service import WorkerService
from scheduler.service import SchedulerService
from tests.system.pool import FAST, Client, FragileEngine, Pool, expected, until

pytestmark = pytest.mark.alone

PROMPTS = [tuple(range(5, 25 + i)) for i in range(12)]


class World:
    def __init__(self, make_bus: Callable[[], Any]) -> None:
        self.pool = Pool(make_bus)
        self.bus = make_bus()  # to look with
        self.client = Client(make_bus())

    async def timeline(self) -> list[dict[str, Any]]:
        return await self.shown("timeline")

    async def shown(self, stream: str) -> list[dict[str, Any]]:
        entries = await self.bus.recent(stream, 10_000)
        return [orjson.loads(value) for _, fields in entries for value in fields.values()]

    async def is_settled(self) -> bool:
        """Nothing is open: no entry, no owner, no mark is left."""
        return not (
            await self.bus.num_open() or await self.bus.owners() or await self.bus.suspects()
        )

    async def settled(self) -> None:
        await until(self.is_settled)

    async def end(self) -> None:
        """All workers leave, so that the scheduler writes what is to be written of them."""
        await self.settled()
        if not any(isinstance(part, SchedulerService) for part in self.pool.services.values()):
            self.pool.scheduler("last")
        for part in self.pool.services.values():
            if isinstance(part, WorkerService):
                part.leave()
        await until(self.no_worker)
        await self.bus.leave_gateway(self.client.gateway)
        await self.pool.stop()

    async def no_worker(self) -> bool:
        return not await self.bus.workers()


@pytest.fixture(params=["memory", "redis"])
def make_bus(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """Looks for keys that are left, when all is over."""
    make: Callable[[], Any] = request.getfixturevalue(f"{request.param}_bus")
    return make


@pytest.fixture
async def world(make_bus: Callable[[], Any]) -> AsyncIterator[World]:
    world = World(make_bus)
    async with world.client.listening():
        yield world
        await world.end()


async def test_answers_are_the_truth_and_nothing_is_left(world: World) -> None:
    world.pool.scheduler()
    world.pool.worker()
    requests = [await world.client.submit(prompt, 40) for prompt in PROMPTS]
    for prompt, request in zip(PROMPTS, requests, strict=True):
        tokens, end = await world.client.answer(request)
        assert tokens == expected(prompt, 40)
        assert (end.kept, end.reason) == (40, FinishReason.LENGTH)


async def test_a_small_cache_preempts_and_changes_nothing(world: World) -> None:
    world.pool.scheduler()
    world.pool.worker(num_blocks=12, block_size=8, max_request_tokens=96)
    requests = [await world.client.submit(prompt, 50) for prompt in PROMPTS]
    for prompt, request in zip(PROMPTS, requests, strict=True):
        tokens, _ = await world.client.answer(request, 30)
        assert tokens == expected(prompt, 50)
    assert any(entry["preempted"] for entry in await world.timeline())


@pytest.mark.parametrize("victim", ["w1", "s1", "both"])
async def test_whoever_dies_the_answers_go_on(world: World, victim: str) -> None:
    world.pool.scheduler("s1")
    world.pool.worker("w1")
    requests = [await world.client.submit(prompt, 200) for prompt in PROMPTS]
    await world.client.until(lambda: len(world.client.tokens.get(requests[0], [])) > 20)
    for name in ("w1", "s1") if victim == "both" else (victim,):
        await world.pool.kill(name)
    world.pool.scheduler("s2")
    world.pool.worker("w2")
    for prompt, request in zip(PROMPTS, requests, strict=True):
        tokens, end = await world.client.answer(request)
        assert tokens == expected(prompt, 200)
        assert end.kept == 200


async def test_a_worker_that_leaves_loses_nothing(world: World) -> None:
    world.pool.scheduler()
    leaver = world.pool.worker("w1")
    requests = [await world.client.submit(prompt, 200) for prompt in PROMPTS]
    await world.client.until(lambda: len(world.client.tokens.get(requests[0], [])) > 20)
    world.pool.worker("w2")
    leaver.leave()
    await asyncio.wait_for(world.pool.tasks["w1"], 5)
    for prompt, request in zip(PROMPTS, requests, strict=True):
        tokens, _ = await world.client.answer(request)
        assert tokens == expected(prompt, 200)
    assert not await world.bus.suspects()  # leaving is no death


async def test_a_worker_without_rows_leaves_at_once(world: World) -> None:
    """Also when no scheduler is there to close its log."""
    leaver = world.pool.worker("w1")
    await until(lambda: has_workers(world))
    leaver.leave()
    await asyncio.wait_for(world.pool.tasks["w1"], leaver.drain_seconds / 2)


async def has_workers(world: World) -> bool:
    return bool(await world.bus.workers())


async def test_two_workers_share_the_load(world: World) -> None:
    world.pool.scheduler()
    world.pool.worker("w1")
    world.pool.worker("w2")
    await asyncio.sleep(0.5)
    requests = [await world.client.submit(prompt, 60) for prompt in PROMPTS]
    for prompt, request in zip(PROMPTS, requests, strict=True):
        tokens, _ = await world.client.answer(request)
        assert tokens == expected(prompt, 60)
    assert len({entry["worker"] for entry in await world.timeline()}) == 2


@pytest.mark.parametrize("state", ["no worker", "waiting", "running"])
async def test_cancel_in_every_state(world: World, state: str) -> None:
    world.pool.scheduler()
    if state != "no worker":
        world.pool.worker(max_rows=1)
    first = await world.client.submit(PROMPTS[0], 2000)
    second = await world.client.submit(PROMPTS[1], 30)
    if state != "no worker":
        await world.client.until(lambda: bool(world.client.tokens.get(first)))
    await world.client.cancel(second if state == "waiting" else first)
    target = second if state == "waiting" else first
    _, end = await world.client.answer(target)
    assert end.reason is FinishReason.CANCELLED
    if state == "waiting":
        await world.client.cancel(first)
        await world.client.answer(first)
    else:
        if state == "no worker":
            world.pool.worker()
        tokens, _ = await world.client.answer(second)
        assert tokens == expected(PROMPTS[1], 30)


async def test_a_stop_keeps_what_it_names(world: World) -> None:
    world.pool.scheduler()
    world.pool.worker()
    request = await world.client.submit(PROMPTS[0], 1500)
    await world.client.until(lambda: len(world.client.tokens.get(request, [])) > 10)
    await world.client.bus.control(Control(ControlKind.STOP, request, kept=7))
    tokens, end = await world.client.answer(request)
    assert (end.kept, end.reason) == (7, FinishReason.STOP)
    assert tokens == expected(PROMPTS[0], len(tokens))


async def test_held_requests_wait_and_others_pass(world: World) -> None:
    world.pool.scheduler()
    held = await world.client.submit(PROMPTS[0], 10)
    await world.client.bus.control(Control(ControlKind.HOLD, held))
    world.pool.worker()
    other = await world.client.submit(PROMPTS[1], 10)
    await world.client.answer(other)
    assert held not in world.client.ended
    await world.pool.kill("s1")  # the next leader knows of the hold
    world.pool.scheduler("s2")
    another = await world.client.submit(PROMPTS[2], 10)
    await world.client.answer(another)
    assert held not in world.client.ended
    await world.client.bus.control(Control(ControlKind.RELEASE, held))
    tokens, _ = await world.client.answer(held)
    assert tokens == expected(PROMPTS[0], 10)


@pytest.mark.parametrize("small", [False, True], ids=["roomy", "small"])
async def test_cached_tokens_are_counted_once(world: World, small: bool) -> None:
    """At the first admission: a small cache preempts, and what comes back finds its own blocks."""
    world.pool.scheduler()
    world.pool.worker(**({"num_blocks": 14, "block_size": 8} if small else {}))
    shared = tuple(range(100, 132))
    first = await world.client.submit(shared, 1)
    _, end = await world.client.answer(first)
    assert end.cached_tokens == 0
    requests = [await world.client.submit((*shared, 200 + i), 40) for i in range(3)]
    for i, request in enumerate(requests):
        tokens, end = await world.client.answer(request, 30)
        assert tokens == expected((*shared, 200 + i), 40)
        assert end.cached_tokens == 32
    assert any(entry["preempted"] for entry in await world.timeline()) == small


async def test_a_drained_tenant_waits_through_a_takeover(world: World) -> None:
    """So does its weight; counters go on where they were."""
    world.pool.settings = replace(FAST, policy="fair")
    world.pool.scheduler("s1")
    world.pool.worker()
    first = await world.client.submit(PROMPTS[0], 10, tenant="alice")
    await world.client.answer(first)
    control = world.client.bus.control
    await control(Control(ControlKind.DRAIN, "tenant:alice"))
    await control(Control(ControlKind.WEIGHT, "tenant:alice", weight=4.0))
    drained = await world.client.submit(PROMPTS[1], 10, tenant="alice")
    await world.client.answer(await world.client.submit(PROMPTS[2], 10, tenant="bob"))
    served = len(PROMPTS[0]) + 2 * 10
    await until(lambda: has_share(world, "alice", above=served - 1))
    assert (await world.bus.shares())["alice"].served == served
    await world.pool.kill("s1")
    world.pool.scheduler("s2")
    await world.client.answer(await world.client.submit(PROMPTS[3], 10, tenant="bob"))
    assert drained not in world.client.ended
    reason = (await waiting_rows(world))[drained]["reason"]
    assert reason == "drained"
    await control(Control(ControlKind.RELEASE, "tenant:alice"))
    tokens, _ = await world.client.answer(drained)
    assert tokens == expected(PROMPTS[1], 10)
    await until(lambda: has_share(world, "alice", above=served))
    share = (await world.bus.shares())["alice"]
    assert share.weight == 4.0
    assert share.served % 1 == ((len(PROMPTS[1]) + 2 * 10) / 4) % 1 == 0.25
    await control(Control(ControlKind.WEIGHT, "tenant:alice", weight=1.0))
    await until(lambda: is_control_empty(world))


async def has_share(world: World, tenant: str, above: float) -> bool:
    share = (await world.bus.shares()).get(tenant)
    return share is not None and share.served > above


async def waiting_rows(world: World) -> dict[str, dict[str, Any]]:
    await asyncio.sleep(0.6)  # it is written twice a second
    rows = orjson.loads((await world.bus.status_fields())["waiting"])
    return {row["request"]: row for row in rows}


async def test_a_drained_worker_is_left_and_taken_back(world: World) -> None:
    world.pool.scheduler()
    world.pool.worker("w1", step_seconds=0.01, max_rows=2)
    requests = [await world.client.submit(prompt, 60) for prompt in PROMPTS[:6]]
    await world.client.until(lambda: len(world.client.tokens.get(requests[0], [])) > 5)
    [drained] = await world.bus.workers()
    await world.client.bus.control(Control(ControlKind.DRAIN, f"worker:{drained}"))
    world.pool.worker("w2", step_seconds=0.01, max_rows=2)
    for prompt, request in zip(PROMPTS, requests, strict=False):
        tokens, _ = await world.client.answer(request, 20)
        assert tokens == expected(prompt, 60)
    last = max(i for i, e in enumerate(await world.timeline()) if e["worker"] == drained)
    assert any(e["worker"] != drained for e in (await world.timeline())[last:])
    await asyncio.sleep(0.6)
    workers = orjson.loads((await world.bus.status_fields())["workers"])
    assert {w["worker"]: w["draining"] for w in workers}[drained]
    await world.client.bus.control(Control(ControlKind.RELEASE, f"worker:{drained}"))
    await world.client.answer(await world.client.submit(PROMPTS[0], 1))
    await until(lambda: is_control_empty(world))


async def is_control_empty(world: World) -> bool:
    return await world.bus.length("control") == 0


async def test_what_nobody_knows_is_dropped(world: World) -> None:
    world.pool.scheduler()
    for control in (
        Control(ControlKind.DRAIN, "worker:nobody"),
        Control(ControlKind.RELEASE, "tenant:nobody"),
        Control(ControlKind.WEIGHT, "nobody", weight=2.0),
        Control(ControlKind.CANCEL, "tenant:nobody"),
    ):
        await world.client.bus.control(control)
    await until(lambda: is_control_empty(world))


async def test_each_choice_is_a_request_of_its_own(world: World) -> None:
    world.pool.scheduler()
    world.pool.worker()
    first = await world.client.submit((), 20, prompts=PROMPTS[:2], n=2)
    for choice in range(4):
        tokens, _ = await world.client.answer(request_id(first.rpartition(".")[0], choice))  # type: ignore[arg-type]
        assert tokens == expected(PROMPTS[choice // 2], 20)


async def test_a_copy_of_a_submission_runs_once(world: World) -> None:
    world.pool.scheduler()
    world.pool.worker()
    await world.client.submit(PROMPTS[0], 20)
    world.client.serial = 0
    request = await world.client.submit(PROMPTS[0], 20)
    await world.client.answer(request)
    await world.settled()
    world.client.serial = 0
    await world.client.submit(PROMPTS[0], 20)  # long after the end
    await world.settled()
    tokens, _ = await world.client.answer(request)
    assert tokens == expected(PROMPTS[0], 20)
    assert len(world.client.tokens[request]) == 20


async def test_what_never_fits_is_refused_with_the_numbers(world: World) -> None:
    world.pool.scheduler()
    world.pool.worker(num_blocks=4, block_size=4)
    await asyncio.sleep(0.5)
    request = await world.client.submit(PROMPTS[0], 20)
    _, end = await world.client.answer(request)
    assert end.reason is FinishReason.REFUSED
    assert "16" in end.error


async def test_a_deadline_ends_what_waits_and_what_runs(world: World) -> None:
    world.pool.scheduler()
    world.pool.worker(max_rows=1)
    running = await world.client.submit(PROMPTS[0], 2000, deadline_seconds=0.5)
    waiting = await world.client.submit(PROMPTS[1], 10, deadline_seconds=0.2)
    for request in (waiting, running):
        _, end = await world.client.answer(request)
        assert end.reason is FinishReason.DEADLINE


async def test_a_dead_gateways_requests_end_unless_they_run_on(world: World) -> None:
    world.pool.scheduler()
    world.pool.worker()
    dead = GatewayId("gw-dead")
    left = await world.client.submit(PROMPTS[0], 2000, gateway=dead)
    attached = await world.client.submit(PROMPTS[1], 1500, gateway=dead)
    await world.client.bus.control(
        Control(ControlKind.ATTACH, attached, gateway=world.client.gateway)
    )
    resumable = await world.client.submit(PROMPTS[2], 1500, gateway=dead, resumable=True)
    tokens, _ = await world.client.answer(attached, 20)
    assert tokens == expected(PROMPTS[1], 1500)
    for request, reason in ((left, FinishReason.CANCELLED), (resumable, FinishReason.LENGTH)):
        journal = await world.client.finished(request)
        assert journal.end is not None
        assert journal.end.reason is reason


async def test_requests_wait_for_a_worker_and_for_a_scheduler(world: World) -> None:
    request = await world.client.submit(PROMPTS[0], 10)
    await asyncio.sleep(0.1)
    world.pool.scheduler()
    await asyncio.sleep(0.3)
    world.pool.worker()
    tokens, _ = await world.client.answer(request)
    assert tokens == expected(PROMPTS[0], 10)


async def test_an_end_token_of_a_former_life_ends_the_request(world: World) -> None:
    """The leader died between the log's entry and the journal's end."""
    world.pool.scheduler()
    world.pool.worker()
    end_token = expected(PROMPTS[0], 5)[4]
    ending = Ending(max_tokens=1000, end_tokens=(end_token,))
    request = await world.client.submit(PROMPTS[0], 1000, ending=ending)
    tokens, end = await world.client.answer(request)
    assert end.reason in {FinishReason.STOP, FinishReason.LENGTH}
    assert len(tokens) >= 5


async def test_garbage_in_the_streams_is_dropped() -> None:
    server = MemoryServer()
    world = World(lambda: MemoryBus(server))
    server.add_next("requests", {b"submit": b"{nonsense"})
    server.add_next("control", {b"kind": b"dance"})
    async with world.client.listening():
        world.pool.scheduler()
        world.pool.worker()
        server.add_next("requests", {b"submit": b"[1]"})
        request = await world.client.submit(PROMPTS[0], 10)
        await world.client.answer(request)
        await world.end()
    assert not server.stream("requests").ids
    assert not server.stream("control").ids


async def test_settings_reach_the_core(world: World) -> None:
    world.pool.settings = replace(FAST, max_running=1, max_step_tokens=8)
    world.pool.scheduler()
    world.pool.worker()
    requests = [await world.client.submit(prompt, 10) for prompt in PROMPTS[:3]]
    for request in requests:
        await world.client.answer(request)
    ends = [world.client.ended[request] for request in requests]
    assert all(end.kept == 10 for end in ends)


async def test_a_request_that_breaks_steps_ends_alone(world: World) -> None:
    """And is kept for whoever looks for the reason; those that shared its batches go on."""
    world.pool.scheduler()
    world.pool.worker(kind=FragileEngine)
    innocent = [await world.client.submit(prompt, 100) for prompt in PROMPTS[:6]]
    poison = await world.client.submit((666, 1, 2), 50)
    _, end = await world.client.answer(poison, 20)
    assert end.reason is FinishReason.ERROR
    assert end.kept == FragileEngine.position + 1  # it breaks when that one is computed
    for prompt, request in zip(PROMPTS, innocent, strict=False):
        tokens, end = await world.client.answer(request, 20)
        assert (tokens, end.reason) == (expected(prompt, 100), FinishReason.LENGTH)
    [dead] = await world.shown("dead")
    assert dead["request"] == poison


async def test_a_log_that_cannot_be_understood_costs_the_worker_its_place() -> None:
    server = MemoryServer()
    world = World(lambda: MemoryBus(server))
    async with world.client.listening():
        world.pool.scheduler()
        world.pool.worker("w1", step_seconds=0.02)
        request = await world.client.submit(PROMPTS[0], 60)
        await world.client.until(lambda: len(world.client.tokens.get(request, [])) > 5)
        [log] = [f"results:{worker}" for worker in await world.bus.workers()]
        server.add(log, f"{server.stream(log).last[0] + 1}-0", {b"result": b"{nonsense"})
        tokens, _ = await world.client.answer(request)
        assert tokens == expected(PROMPTS[0], 60)
        await world.end()


async def test_a_registration_repeated_too_late_gets_no_work() -> None:
    """Its answer was lost, and the worker was given up meanwhile: its log is closed."""
    server = MemoryServer()
    world = World(lambda: MemoryBus(server))
    async with world.client.listening():
        world.pool.scheduler("s1")
        world.pool.worker("w1")
        await world.client.answer(await world.client.submit(PROMPTS[0], 1))
        [hello] = (await world.bus.workers()).values()
        await world.pool.kill("w1")
        await until(world.no_worker)
        await world.bus.register(hello)
        request = await world.client.submit(PROMPTS[0], 10)
        await until(world.no_worker)
        assert not server.hash("owners")
        assert not server.hash("suspects")
        world.pool.worker("w2")
        await world.client.answer(request)
        await world.end()
