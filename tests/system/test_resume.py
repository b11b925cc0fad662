"""A whole pool with gateways that die: streams go on elsewhere, and nobody computes for nobody."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from starlette.types import ASGIApp

from common.config import GatewaySettings
from common.messages import FinishReason, GatewayId, Journal, RequestId, SubmissionId
from gateway.app import build_app
from gateway.service import GatewayService
from gpu_worker.service import WorkerService
from tests.gateway.client import Call
from tests.gateway.serving import JSON, model
from tests.gateway.test_resume import last_id, pieces, unnamed
from tests.system.pool import FAST, Pool, until

pytestmark = pytest.mark.alone

SETTINGS = replace(FAST, gateway_grace_seconds=0.3, resume_grace_seconds=1.0)
LONG = {"max_tokens": 150, "ignore_eos": True}
SHORT = {"max_tokens": 40, "ignore_eos": True}
RESUMABLE = {"x-resumable": "true"}


class World:
    """A scheduler, a worker, and gateways that can be killed."""

    def __init__(self, make_bus: Callable[[], Any]) -> None:
        self.make_bus = make_bus
        self.bus = make_bus()  # to look with
        self.pool = Pool(make_bus, SETTINGS)
        self.apps: dict[str, ASGIApp] = {}
        self.pool.scheduler("s1")
        self.pool.worker("w1", step_seconds=0.003)

    async def gateway(self, name: str) -> None:
        service = GatewayService(self.make_bus(), GatewayId(name), model(), GatewaySettings())
        self.apps[name] = build_app(service, ())
        self.pool.tasks[name] = asyncio.get_running_loop().create_task(service.run(), name=name)
        self.pool.services[name] = service  # type: ignore[assignment]

        async def is_ready() -> bool:
            return (await self.get(name, "/ready").over()).status == 200

        await until(is_ready, 10.0)

    async def kill(self, name: str) -> None:
        """The process and all that its clients wait for, without a word to anybody."""
        service: Any = self.pool.services[name]
        service.router.controls.send = lambda _control: None
        await self.pool.kill(name)

    def post(self, name: str, fields: dict[str, Any], **headers: str) -> Call:
        body = {"model": model().name, "prompt": "Hello", "stream": True} | fields
        return Call(self.apps[name], "POST", "/v1/completions", orjson.dumps(body), JSON | headers)

    def get(self, name: str, path: str, **headers: str) -> Call:
        return Call(self.apps[name], "GET", path, b"", headers)

    def resume(self, name: str, call: Call, last_event: str = "") -> Call:
        path = f"/v1/streams/{call.headers['x-stream-id']}"
        return self.get(name, path, **{"last-event-id": last_event} if last_event else {})

    async def journal(self, call: Call) -> Journal:
        journal: Journal = await self.bus.journal(RequestId(f"{call.headers['x-request-id']}.0"))
        return journal

    async def reason(self, call: Call) -> FinishReason:
        """How it ended, once it has."""

        async def has_ended() -> bool:
            return (await self.journal(call)).end is not None

        await until(has_ended, 10.0)
        end = (await self.journal(call)).end
        assert end is not None
        return end.reason

    async def end(self) -> None:
        async def is_settled() -> bool:
            return not (await self.bus.num_open() or await self.bus.owners())

        async def no_worker() -> bool:
            return not await self.bus.workers()

        await until(is_settled, 10.0)
        for part in self.pool.services.values():
            if isinstance(part, WorkerService):
                part.leave()
        await until(no_worker)
        await self.pool.stop()
        for name in self.apps:
            await self.bus.leave_gateway(GatewayId(name))


@pytest.fixture
def make_bus(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """In memory, where a test does not say otherwise."""
    kind = getattr(request, "param", "memory")
    make: Callable[[], Any] = request.getfixturevalue(f"{kind}_bus")
    return make


on_both = pytest.mark.parametrize("make_bus", ["memory", "redis"], indirect=True)


@pytest.fixture
async def world(make_bus: Callable[[], Any]) -> AsyncIterator[World]:
    world = World(make_bus)
    await asyncio.gather(world.gateway("g1"), world.gateway("g2"))
    yield world
    await world.end()


async def cut(call: Call) -> None:
    """Its gateway is gone, and so is the connection."""
    call.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call.task


@pytest.mark.parametrize("kind", ["one", "choices", "stop"])
async def test_a_stream_goes_on_when_its_gateway_is_killed(world: World, kind: str) -> None:
    fields: dict[str, Any] = LONG | {"stream_options": {"include_usage": True}}
    whole = pieces((await world.post("g1", fields).over()).body)
    if kind == "choices":
        fields |= {"n": 3}
        whole = pieces((await world.post("g1", fields, **RESUMABLE).over()).body)
    elif kind == "stop":
        text = orjson.loads(whole[80].partition(b"data: ")[2])["choices"][0]["text"]
        fields |= {"stop": [text]}
        whole = pieces((await world.post("g1", fields).over()).body)
    call = world.post("g1", fields, **RESUMABLE)
    await call.until(lambda call: len(pieces(call.body)) > len(whole) // 3)
    await world.kill("g1")
    await cut(call)
    had = pieces(call.body)
    rest = await world.resume("g2", call, last_id(had)).over()
    same = [unnamed(frame) for frame in had + pieces(rest.body)]
    assert same == [unnamed(frame) for frame in whole]


@on_both
async def test_everybody_is_killed_and_the_stream_goes_on(world: World) -> None:
    """Twice: gateway, scheduler and worker at once, while it is asked for under a key."""
    whole = pieces((await world.post("g1", LONG).over()).body)
    had: list[bytes] = []
    for number, gateway in enumerate(("g1", "g2")):
        last = {"last-event-id": last_id(had)} if had else {}
        call = world.post(gateway, LONG, **{"idempotency-key": "k"}, **last)
        length = len(whole) // 3
        await call.until(lambda call, length=length: len(pieces(call.body)) >= length)
        for name in (gateway, f"s{number + 1}", f"w{number + 1}"):
            await world.kill(name) if name == gateway else await world.pool.kill(name)
        await cut(call)
        had += pieces(call.body)
        world.pool.scheduler(f"s{number + 2}")
        world.pool.worker(f"w{number + 2}", step_seconds=0.003)
    await world.gateway("g3")
    last = {"last-event-id": last_id(had)}
    had += pieces((await world.post("g3", LONG, **{"idempotency-key": "k"}, **last).over()).body)
    assert [unnamed(frame) for frame in had] == [unnamed(frame) for frame in whole]


@on_both
@pytest.mark.parametrize("stream", [True, False])
async def test_one_key_at_two_gateways_is_one_request(world: World, stream: bool) -> None:
    fields = SHORT | {"stream": stream}
    calls = [world.post(at, fields, **{"idempotency-key": "k"}) for at in ("g1", "g2") * 2]
    replies = [await call.over() for call in calls]
    assert [reply.status for reply in replies] == [200] * 4
    assert len({reply.body for reply in replies}) == 1
    assert len({reply.headers["x-request-id"] for reply in replies}) == 1
    totals = orjson.loads((await world.bus.status_fields())["totals"])
    assert totals["ended"].get("length", 0) <= 1


@pytest.mark.parametrize("how", ["leaves", "dies"])
async def test_who_never_comes_back_is_cancelled_in_time(world: World, how: str) -> None:
    """And nobody before: that a client is away for a moment does no harm."""
    endless = {"max_tokens": 2000, "ignore_eos": True}
    call = world.post("g1", endless, **RESUMABLE)
    await call.until(lambda call: bool(call.body))
    if how == "leaves":
        call.leave()
        await call.over()
    else:
        await world.kill("g1")
        await cut(call)
    await asyncio.sleep(0.3)
    back = world.resume("g2", call)
    await back.until(lambda call: bool(call.body))
    assert (await world.journal(call)).end is None
    await asyncio.sleep(1.2)  # longer than the grace: somebody looks
    assert (await world.journal(call)).end is None
    back.leave()
    await back.over()
    left_at = asyncio.get_running_loop().time()
    assert await world.reason(call) is FinishReason.CANCELLED
    assert asyncio.get_running_loop().time() - left_at > 0.8


async def test_a_new_scheduler_cancels_what_nobody_looks_at(world: World) -> None:
    call = world.post("g1", {"max_tokens": 2000, "ignore_eos": True}, **RESUMABLE)
    await call.until(lambda call: bool(call.body))
    call.leave()
    await call.over()
    await asyncio.sleep(0.2)
    await world.pool.kill("s1")
    world.pool.scheduler("s2")
    assert await world.reason(call) is FinishReason.CANCELLED


async def test_who_did_not_ask_to_be_resumable_is_cancelled_at_once(world: World) -> None:
    call = world.post("g1", {"max_tokens": 2000, "ignore_eos": True})
    await call.until(lambda call: bool(call.body))
    call.leave()
    await call.over()
    left_at = asyncio.get_running_loop().time()
    assert await world.reason(call) is FinishReason.CANCELLED
    assert asyncio.get_running_loop().time() - left_at < 0.5


@on_both
async def test_a_key_survives_what_dies_right_after_it_is_taken(world: World) -> None:
    """The gateway wrote the request and died before anybody had read it."""
    await world.pool.kill("s1")
    call = world.post("g1", SHORT, **{"idempotency-key": "k"})

    async def is_written() -> bool:
        return bool(await world.bus.num_open())

    await until(is_written)
    await world.kill("g1")
    await cut(call)
    again = world.post("g2", SHORT, **{"idempotency-key": "k"})
    await asyncio.sleep(0.2)
    world.pool.scheduler("s2")
    reply = await again.over()
    assert reply.status == 200
    assert reply.events[-1] == "[DONE]"
    submission = SubmissionId(reply.headers["x-request-id"])
    assert (await world.bus.journal(RequestId(f"{submission}.0"))).end.kept == 40
