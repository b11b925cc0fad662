"""`python -m scheduler`: connects, and leads or stands by until it is told to stop."""

import asyncio
import gc
import secrets
import signal
import socket
import sys

import structlog
import uvloop

from common import log as logs
from common.bus import BusError
from common.config import SchedulerSettings, read
from common.redis_bus import RedisBus
from scheduler.service import SchedulerService
from scheduler.setup import choices_of, weights_of

PROGRAM = "chairlift scheduler"

log = structlog.get_logger()


def main() -> None:
    settings = read(SchedulerSettings, PROGRAM)
    logs.setup(settings.log_level, settings.log_format)
    try:
        choices_of(settings)
        weights_of(settings)
    except ValueError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        raise SystemExit(2) from None
    gc.freeze()  # what is loaded stays; collections look at requests only
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except BusError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        raise SystemExit(2) from None


async def serve(settings: SchedulerSettings) -> None:
    """Nothing is lost by ending at once: whoever leads next reads everything from Redis.

    A leader leaves its lease, so that this is at once too.
    """
    bus = RedisBus(settings.redis_url, settings.pool, settings.timeline_entries)
    await bus.connect()
    holder = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    service = SchedulerService(bus, settings, holder)
    log.info("standing by", scheduler=holder)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(service.run(), name="scheduler.service")
            await stop.wait()
            log.info("stopping", scheduler=holder)
            running.cancel()
    finally:
        await bus.aclose()


if __name__ == "__main__":
    main()
