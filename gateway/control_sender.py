"""Sends controls in the background, for callers that may not await: each until the bus took it."""

import asyncio
from collections import deque

import structlog

from common.bus import BusError, GatewayBus
from common.messages import Control

RETRY_SECONDS = 0.5

log = structlog.get_logger()


class ControlSender:
    """`send` never waits and never fails; `run` until cancelled.

    As many controls wait at most as answers were open. A control that is sent twice does no harm.
    """

    def __init__(self, bus: GatewayBus) -> None:
        self.bus = bus
        self._waiting: deque[Control] = deque()
        self._has_waiting = asyncio.Event()

    def send(self, control: Control) -> None:
        self._waiting.append(control)
        self._has_waiting.set()

    async def run(self) -> None:
        while True:
            await self._has_waiting.wait()
            self._has_waiting.clear()
            await self.flush()

    async def flush(self) -> None:
        """Send all that wait."""
        while self._waiting:
            control = self._waiting[0]
            try:
                await self.bus.control(control)
            except BusError as error:
                log.warning("control is sent again", kind=control.kind, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._waiting.popleft()
