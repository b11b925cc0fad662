"""One gateway process: what its routes share, its work in the background, and how it ends."""

import asyncio
import contextlib
import secrets
import socket
from typing import Final

import structlog

from common.bus import GatewayBus
from common.config import GatewaySettings
from common.messages import GatewayId
from common.metrics import GatewayMetrics
from gateway.admission import QueueLimits, unavailable
from gateway.health import Health, Monitor
from gateway.intake import Intake, Model
from gateway.streams import Streams
from gateway.token_router import TokenRouter

FAREWELL_SECONDS: Final = 2.0  # for the last controls, and for leaving `gateways`

log = structlog.get_logger()


def new_gateway_id() -> GatewayId:
    """New at each start: what was published for an earlier process concerns nobody."""
    return GatewayId(f"{socket.gethostname()}-{secrets.token_hex(4)}")


class GatewayService:
    def __init__(
        self, bus: GatewayBus, gateway: GatewayId, model: Model, settings: GatewaySettings
    ) -> None:
        self.bus = bus
        self.gateway = gateway
        self.model = model
        self.settings = settings
        self.metrics = GatewayMetrics(model.name)
        self.router = TokenRouter(bus, gateway, self.metrics)
        self.monitor = Monitor(bus, gateway, self.metrics)
        self.streams = Streams(bus, self.monitor.progress)
        self.queue_limits = QueueLimits(settings.max_queue, settings.max_queue_tokens)
        self.intake = Intake(model, gateway, settings.max_body_bytes, settings.tokenizer_threads)
        self.is_draining = False

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.router.run(), name="gateway.router")
            tasks.create_task(self.monitor.run(), name="gateway.monitor")

    async def drain(self) -> None:
        """Until all answers are over: by themselves, or with an error when the time is up."""
        self.is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_seconds):
                await self.router.all_over()
        self.cut_off()

    def cut_off(self) -> None:
        """End all running answers with an error."""
        if self.router.num_open:
            log.warning("answers are cut off", answers=self.router.num_open)
        self.router.fail_all(unavailable("The gateway is shutting down.", "shutting_down"))

    async def leave(self) -> None:
        """The last words, once `run` has been cancelled: cancels that wait, and goodbye."""
        self.intake.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self.router.controls.flush()
                await self.bus.leave_gateway(self.gateway)

    def readiness(self, now: float) -> Health:
        if self.is_draining:
            return Health(False, "the gateway is shutting down")
        if not self.router.is_subscribed:
            return Health(False, "the subscription does not stand")
        return self.monitor.progress.readiness(now)
