"""`python -m gpu_worker`: builds the engine, and works until it is told to stop.

The first SIGTERM asks the scheduler to move the rows elsewhere; a second one ends at once.
"""

import asyncio
import gc
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvloop

from common import log as logs
from common.bus import BusError
from common.config import WorkerSettings, read
from common.messages import WorkerId
from common.model_files import ModelFilesError, locate
from common.redis_bus import RedisBus
from gpu_worker.engine import Engine, EngineError
from gpu_worker.followers import FollowerProcess, Followers, LeadingEngine
from gpu_worker.service import WorkerService
from gpu_worker.simulated import SimulatedEngine

if TYPE_CHECKING:
    import torch

PROGRAM = "chairlift worker"
SWITCH_SECONDS = 0.0005  # the bus's thread must not wait 5 ms for the engine's, nor the other way

log = structlog.get_logger()


def main() -> None:
    settings = read(WorkerSettings, PROGRAM)
    logs.setup(settings.log_level, settings.log_format)
    try:
        with ExitStack() as held:
            engine, announce = build_engine(settings, held)
            gc.freeze()  # the model stays; collections look at rows only
            sys.setswitchinterval(SWITCH_SECONDS)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve(settings, engine, announce))
    except (EngineError, ModelFilesError, BusError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        raise SystemExit(2) from None


Announce = Callable[[WorkerId], None]  # tells all ranks the name of a life that begins


def build_engine(settings: WorkerSettings, held: ExitStack) -> tuple[Engine, Announce]:
    """The engine, with all that it needs for as long as it works: GPUs, other ranks."""
    if settings.backend == "simulated":
        if settings.tensor_parallel > 1:
            raise EngineError("--tensor-parallel: the simulated backend computes nothing to share")
        files = locate(settings.model, Path(settings.data_dir))
        name = settings.served_model_name or files.name
        return SimulatedEngine.from_settings(settings, name), lambda _name: None
    ranks = claim(settings, held)
    if len(ranks) == 1:
        from gpu_worker.loading import load_engine  # torch takes seconds

        return load_engine(ranks[0], show_progress), lambda _name: None
    processes = [FollowerProcess(rank) for rank in range(1, len(ranks))]
    followers = held.enter_context(Followers(processes))  # they end before their GPUs are left
    return lead(ranks, followers), followers.begin_life


def claim(settings: WorkerSettings, held: ExitStack) -> list[WorkerSettings]:
    """The settings of each rank: on GPUs, each has one that no other worker takes."""
    from gpu_worker.backend import candidates, choose_device, visible_gpus

    device, count = choose_device(settings), settings.tensor_parallel
    if device.type == "cpu":
        return [settings] * count
    from gpu_worker.claim_thread import claimed

    holder = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    gpus = candidates(device, count, visible_gpus())
    taken = held.enter_context(claimed(settings, holder, gpus, count))
    return [replace(settings, device=gpu.name) for gpu in taken]


def lead(ranks: list[WorkerSettings], followers: Followers) -> LeadingEngine:
    """Load this rank's part of the model while the followers load theirs."""
    from gpu_worker import parallel_torch
    from gpu_worker.loading import load_engine
    from gpu_worker.shard import Shard

    def meet(device: "torch.device") -> parallel_torch.TorchGroup:
        with parallel_torch.listen() as meeting:
            port = meeting.getsockname()[1]
            followers.load(ranks[1:], port)
            return parallel_torch.meet(port, Shard(0, len(ranks)), device, meeting)

    engine = load_engine(ranks[0], show_progress, meet)
    followers.loaded()
    return LeadingEngine(engine, followers)


def show_progress(what: str, share: float) -> None:
    log.info(what, percent=round(share * 100))


async def serve(settings: WorkerSettings, engine: Engine, announce: Announce) -> None:
    bus = RedisBus(settings.redis_url, settings.pool)
    await bus.connect()
    service = WorkerService(
        bus,
        engine,
        socket.gethostname(),
        settings.beat_seconds,
        settings.drain_seconds,
        announce,
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
