"""`python -m gpu_worker`: builds the engine, and works until it is told to stop.

The first SIGTERM asks the scheduler to move the rows elsewhere; a second one ends at once.
"""

import asyncio
import gc
import signal
import socket
import sys
from pathlib import Path

import structlog
import uvloop

from common import log as logs
from common.bus import BusError
from common.config import WorkerSettings, read
from common.model_files import ModelFilesError, locate
from common.redis_bus import RedisBus
from gpu_worker.engine import Engine, EngineError
from gpu_worker.service import WorkerService
from gpu_worker.simulated import SimulatedEngine

PROGRAM = "chairlift worker"
SWITCH_SECONDS = 0.0005  # the bus's thread must not wait 5 ms for the engine's, nor the other way

log = structlog.get_logger()


def main() -> None:
    settings = read(WorkerSettings, PROGRAM)
    logs.setup(settings.log_level, settings.log_format)
    try:
        engine = build_engine(settings)
        gc.freeze()  # the model stays; collections look at rows only
        sys.setswitchinterval(SWITCH_SECONDS)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, engine))
    except (EngineError, ModelFilesError, BusError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        raise SystemExit(2) from None


def build_engine(settings: WorkerSettings) -> Engine:
    if settings.backend == "simulated":
        files = locate(settings.model, Path(settings.data_dir))
        return SimulatedEngine.from_settings(settings, settings.served_model_name or files.name)
    from gpu_worker.loading import load_engine  # torch takes seconds

    return load_engine(settings, show_progress)


def show_progress(what: str, share: float) -> None:
    log.info(what, percent=round(share * 100))


async def serve(settings: WorkerSettings, engine: Engine) -> None:
    bus = RedisBus(settings.redis_url, settings.pool)
    await bus.connect()
    service = WorkerService(
        bus, engine, socket.gethostname(), settings.beat_seconds, settings.drain_seconds
    )
    log.info("ready to compute", device=engine.capacity.device, blocks=engine.capacity.num_blocks)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(service.run(), name="worker.service")
            ending = tasks.create_task(end(service, running), name="worker.end")
            await asyncio.wait([running])
            ending.cancel()
    finally:
        await bus.aclose()


async def end(service: WorkerService, running: asyncio.Task[None]) -> None:
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    log.info("leaving", signal=(await signals.get()).name)
    service.leave()
    await signals.get()
    running.cancel()


if __name__ == "__main__":
    main()
