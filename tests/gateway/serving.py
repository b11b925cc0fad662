"""A gateway over the bus in memory and a scripted pool, for as long as a test needs it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import orjson
from starlette.types import ASGIApp

from common.api_keys import ApiKey
from common.config import GatewaySettings
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from common.messages import GatewayId, RequestId
from gateway.__main__ import load_model
from gateway.app import build_app
from gateway.intake import Model
from gateway.service import GatewayService
from tests.gateway.client import Call, Reply
from tests.gateway.fake_pool import FakePool, Script

TEXT = "Naïve café: 你好, 🙂 and so on, word after word, until it ends."
JSON = {"content-type": "application/json"}


@cache
def model() -> Model:
    return load_model(GatewaySettings())


def tokens_of(text: str) -> list[int]:
    """An answer that says `text` and ends by itself."""
    return [*model().tokenizer.encode(text), model().end_tokens[0]]


def says(text: str) -> Script:
    return lambda _request: tokens_of(text)


class Serving:
    def __init__(self, server: MemoryServer, service: GatewayService, app: ASGIApp) -> None:
        self.server = server
        self.service = service
        self.app = app
        self.pool: FakePool

    def call(self, path: str, payload: Any = None, method: str = "POST", **headers: str) -> Call:
        body = payload if isinstance(payload, bytes) else orjson.dumps(payload)
        return Call(self.app, method, path, body, JSON | headers)

    def chat(self, **fields: Any) -> Call:
        messages = [{"role": "user", "content": "Hello"}]
        return self.call(
            "/v1/chat/completions", {"model": model().name, "messages": messages} | fields
        )

    def complete(self, **fields: Any) -> Call:
        return self.call("/v1/completions", {"model": model().name, "prompt": "Hello"} | fields)

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.call(path, b"", "GET", **headers).over()

    async def settled(self) -> None:
        """Everything that the pool runs or holds in line is over."""
        await self.until(lambda: not self.server.stream("requests").ids)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110  what it looks at knows no events
            await asyncio.sleep(0.001)


@asynccontextmanager
async def another(
    it: Serving, name: str = "g1", keys: Sequence[ApiKey] = ()
) -> AsyncIterator[Serving]:
    """A second gateway of the same pool. It dies at the end: it says no word to anybody."""
    service = GatewayService(MemoryBus(it.server), GatewayId(name), model(), it.service.settings)
    other = Serving(it.server, service, build_app(service, keys))
    other.pool = it.pool
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(service.run())
        await service.monitor.poll()
        await it.pool.report()
        await service.monitor.poll()
        try:
            yield other
        finally:
            running.cancel()


@asynccontextmanager
async def serving(
    script: Script | str = TEXT,
    *,
    bus: Callable[[MemoryServer], MemoryBus] = MemoryBus,
    keys: Sequence[ApiKey] = (),
    pool: bool = True,
    **settings: Any,
) -> AsyncIterator[Serving]:
    """`pool`: with a scheduler that leads and a worker."""
    server = MemoryServer()
    values: dict[str, Any] = {"keep_alive_seconds": 5.0} | settings
    service = GatewayService(bus(server), GatewayId("g0"), model(), GatewaySettings(**values))
    it = Serving(server, service, build_app(service, keys))
    it.pool = FakePool(server, says(script) if isinstance(script, str) else script)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(service.run())]
        if pool:
            await it.pool.start()
            await service.monitor.poll()
            await it.pool.report()
            running.append(tasks.create_task(it.pool.run()))
        await service.monitor.poll()
        try:
            yield it
        finally:
            for task in running:
                task.cancel()
    await service.leave()


def requests_of(it: Serving) -> list[RequestId]:
    return [request for submit in it.pool.submits for request in submit.request_ids()]
