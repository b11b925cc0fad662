"""The bus over Redis: the only importer of `redis`, and the only one that knows key names."""

import asyncio

from common.bus import ServerError, UnavailableError
from common.redis_bus.client import Client
from common.redis_bus.gateway import GatewaySide
from common.redis_bus.gpu import GpuSide
from common.redis_bus.keys import Keys
from common.redis_bus.operator import OperatorSide
from common.redis_bus.repeater import Repeater
from common.redis_bus.scheduler import SchedulerSide
from common.redis_bus.server import Preparation
from common.redis_bus.worker import WorkerSide

CONNECT_SECONDS = 30.0


class RedisBus(GatewaySide, WorkerSide, GpuSide, SchedulerSide, OperatorSide):
    """All faces of common/bus.py. One for a process; it belongs to the loop that first uses it."""

    def __init__(self, url: str, pool: str, max_shown: int = 10_000) -> None:
        """`max_shown`: entries that `timeline` and `dead` keep, about. `ServerError`."""
        try:
            self._keys = Keys(pool)
        except ValueError as error:
            raise ServerError(str(error)) from None
        self._max_shown = max_shown
        self._client = Client(url)
        self._redis = Repeater(self._client, Preparation())

    async def connect(self, seconds: float = CONNECT_SECONDS) -> None:
        """Check the server and put our functions into it. `ServerError`, `UnavailableError`."""
        try:
            async with asyncio.timeout(seconds):
                await self._redis.call("PING")
        except TimeoutError:
            raise UnavailableError(f"no Redis answers within {seconds:.0f} s") from None

    async def aclose(self) -> None:
        await self._client.aclose()
