"""Where the server has no disk, no memory or no patience left: what runs loses no token."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from common.redis_bus import gateway
from tests.chaos.link import Link
from tests.gateway.client import Call
from tests.system.pool import until
from tests.system.served import Served, serving, truth
from tests.valkey import PASSWORD, ValkeyServer

FRAMES = 400
OVERRUN_BYTES = 20_000  # of notices that a gateway has not read


@pytest.fixture
def own_server() -> Iterator[ValkeyServer]:
    server = ValkeyServer()
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
async def served(own_server: ValkeyServer) -> AsyncIterator[Served]:
    async with serving(own_server) as served:
        yield served


async def refused(call: Call, code: str) -> None:
    """With 503 in OpenAI's shape."""
    reply = await call.over()
    assert reply.status == 503
    assert int(reply.headers["retry-after"]) >= 1
    error = reply.json()["error"]
    assert error["message"]
    assert (error["type"], error["param"], error["code"]) == ("server_error", None, code)


async def taken(served: Served) -> None:
    call = served.complete("And now", 5)
    assert (await call.over()).texts == {0: truth("And now", 5)}


async def test_a_full_disk_refuses_what_is_new_and_loses_nothing(
    served: Served, own_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that syncs always ends when it cannot write; started again, it is no better off."""
    monkeypatch.setattr(gateway, "GIVE_UP_SECONDS", 0.5)
    running = served.complete("Once", FRAMES)
    await running.until(lambda call: call.body.count(b"data: ") > 50)
    own_server.fill_disk()
    await refused(served.complete("No", 5), "unavailable")
    assert await asyncio.to_thread(own_server.wait) == 1
    await asyncio.to_thread(own_server.start)
    own_server.fill_disk()
    await refused(served.complete("No", 5), "unavailable")
    own_server.kill()
    await asyncio.to_thread(own_server.start)
    reply = await running.over()
    assert reply.texts == {0: truth("Once", FRAMES)}
    assert reply.events[-1] == "[DONE]"
    await taken(served)


async def test_a_server_without_memory_refuses_what_is_new_and_finishes_what_runs(
    served: Served, own_server: ValkeyServer
) -> None:
    running = served.complete("Once", FRAMES)
    await running.until(lambda call: call.body.count(b"data: ") > 50)
    with own_server.client() as direct:
        direct.config_set("maxmemory", "1")
        await refused(served.complete("No", 5), "no_memory")
        assert not running.task.done()
        assert (await running.over()).texts == {0: truth("Once", FRAMES)}
        await refused(served.complete("No", 5), "no_memory")
        direct.config_set("maxmemory", "0")
    await taken(served)


async def test_a_gateway_that_is_cut_off_for_not_reading_shows_every_token_once(
    own_server: ValkeyServer,
) -> None:
    link = Link(own_server.socket)
    await link.open()
    with own_server.client() as direct:
        direct.config_set("client-output-buffer-limit", f"pubsub {OVERRUN_BYTES} 0 0")

        async def is_cut_off() -> bool:
            return not direct.client_list(_type="pubsub")

        url = f"redis://:{PASSWORD}@127.0.0.1:{link.port}"
        async with serving(own_server, url) as served:
            running = [served.complete(prompt, 300, n=20) for prompt in ("One", "Two", "Three")]
            for call in running:
                await call.until(lambda call: call.body.count(b"data: ") > 100)
            link.freeze()
            await until(is_cut_off, 20)
            link.mend()
            for call, prompt in zip(running, ("One", "Two", "Three"), strict=True):
                texts = (await call.over()).texts
                assert texts == dict.fromkeys(range(20), truth(prompt, 300))
    await link.close()
