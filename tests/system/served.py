"""A pool over a real server in this process, with a gateway before it: requests in, frames out."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.types import ASGIApp

from common.config import GatewaySettings, SchedulerSettings
from common.messages import GatewayId
from common.redis_bus import RedisBus
from gateway.app import build_app
from gateway.service import GatewayService
from tests.gateway.client import Call
from tests.gateway.serving import JSON, model
from tests.system.pool import Pool, expected, until
from tests.valkey import ValkeyServer

STEADY = SchedulerSettings(lease_seconds=2.0, gateway_grace_seconds=60.0)
POOL = "own"


def truth(prompt: str, count: int) -> str:
    """What the simulated engine answers, as text."""
    tokenizer = model().tokenizer
    tokens = expected(tuple(tokenizer.encode(prompt)), count)
    return b"".join(map(tokenizer.token_bytes, tokens)).decode(errors="replace")


class Served:
    def __init__(self, app: ASGIApp, service: GatewayService) -> None:
        self.app = app
        self.service = service

    def complete(self, prompt: str, max_tokens: int, **fields: Any) -> Call:
        wanted = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        body = orjson.dumps({"model": model().name, **wanted, **fields})
        return Call(self.app, "POST", "/v1/completions", body, JSON)


@contextlib.asynccontextmanager
async def serving(
    server: ValkeyServer, gateways_url: str = "", step_seconds: float = 0.002
) -> AsyncIterator[Served]:
    """`gateways_url`: by which the gateway finds the server; "": as the others do."""
    buses: list[RedisBus] = []

    def bus(url: str = server.url) -> RedisBus:
        buses.append(RedisBus(url, POOL))
        return buses[-1]

    pool = Pool(bus, STEADY)
    pool.scheduler()
    pool.worker(step_seconds=step_seconds, num_blocks=4096, max_request_tokens=8192)
    gateway = bus(gateways_url or server.url)
    service = GatewayService(gateway, GatewayId("g0"), model(), GatewaySettings())
    running = asyncio.create_task(service.run())

    async def is_ready() -> bool:
        return service.readiness(asyncio.get_running_loop().time()).ok

    try:
        await until(is_ready, 20)
        yield Served(build_app(service, ()), service)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await pool.stop()
        await service.leave()
        for each in buses:
            await each.aclose()
