"""`python -m gpu_worker.follower`: a rank of a worker other than 0, which starts it.

It says nothing to anybody but rank 0: it reads the plans of the worker's name, and executes those
that rank 0 executes. It ends when rank 0 does, however that ends.
"""

import contextlib
import gc
import json
import os
import queue
import signal
import socket
import sys
from concurrent.futures import Future

import structlog

from common import log as logs
from common.bus import BusError
from common.config import WorkerSettings
from common.messages import StepPlan, WorkerId
from common.redis_bus import RedisBus
from gpu_worker.engine import Engine, EngineError, Launched
from gpu_worker.followers import REFUSED
from gpu_worker.loop_thread import LoopThread
from gpu_worker.rank_channel import Channel

BLOCK_SECONDS = 1.0
CLOSE_SECONDS = 2.0
SWITCH_SECONDS = 0.0005  # as rank 0's

log = structlog.get_logger()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0's to obey
        signal.signal(number, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=os.dup(0)))
    channel.watch(lambda: os._exit(0))
    from gpu_worker.loading import load_engine  # takes seconds, while rank 0 looks at the model
    from gpu_worker.parallel_torch import meet
    from gpu_worker.shard import Shard

    kind, text = channel.receive()
    if kind != "start":  # rank 0 found that it cannot begin, and has said why
        os._exit(0)
    start = json.loads(text)
    settings, rank = WorkerSettings(**start["settings"]), start["rank"]
    logs.setup(settings.log_level, settings.log_format)
    structlog.contextvars.bind_contextvars(rank=rank)
    shard = Shard(rank, settings.tensor_parallel)
    try:
        engine = load_engine(settings, meet=lambda device: meet(start["port"], shard, device))
        plans = PlanReader(RedisBus(settings.redis_url, settings.pool))
    except (EngineError, BusError) as error:
        sys.stderr.write(f"chairlift worker: rank {rank}: {error}\n")
        os._exit(REFUSED)
    gc.freeze()
    sys.setswitchinterval(SWITCH_SECONDS)
    channel.send("ready")
    try:
        follow(channel, engine, plans)
    except Exception:
        log.exception("a step failed")  # this rank is out of step: all start over
    os._exit(1)  # with no farewell to the other ranks, which may wait for this one


def follow(channel: Channel, engine: Engine, plans: "PlanReader") -> None:
    """Do what rank 0 does, until it is gone. Raises what a step raises, but for `EngineError`."""
    launched: dict[str, Launched] = {}
    while True:
        kind, value = channel.receive()
        if kind == "life":
            launched.clear()
            engine.reset()
            plans.begin(WorkerId(value))
            channel.send("ready")
        elif kind == "launch":
            plan = plans.take(int(value))
            channel.send("launch", value)
            with contextlib.suppress(EngineError):  # on every rank; rank 0 tells the scheduler
                launched[value] = engine.launch(plan)
        elif kind == "finish":
            launched.pop(value).finish()
        else:
            return


class PlanReader:
    """Reads the plans of one life after the other, on a thread of its own, ahead of `take`."""

    def __init__(self, bus: RedisBus) -> None:
        self._thread = LoopThread("plans")
        self._bus = bus
        self._plans: queue.Queue[StepPlan | Exception] = queue.Queue()
        self._reading: Future[None] | None = None

    def begin(self, name: WorkerId) -> None:
        self._stop()
        plans = self._plans = queue.Queue()
        self._reading = self._thread.start(self._read(name, plans))

    def take(self, step: int) -> StepPlan:
        """The plan of that step, the next one. Raises where there is none and will be none."""
        found = self._plans.get()
        if isinstance(found, Exception):
            raise found
        if found.step != step:
            raise RuntimeError(f"plan {step} is gone: the next one is {found.step}")
        return found

    def close(self) -> None:
        self._stop()
        self._plans.put(RuntimeError("nothing is read any more"))
        self._thread.close(self._bus.aclose(), CLOSE_SECONDS)

    def _stop(self) -> None:
        if self._reading:
            self._reading.cancel()

    async def _read(self, name: WorkerId, plans: "queue.Queue[StepPlan | Exception]") -> None:
        last, is_closed = 0, False
        while not is_closed:
            try:
                news = await self._bus.read_plans(name, last, BLOCK_SECONDS)
            except BusError as error:
                plans.put(error)
                return
            for plan in news.plans:
                last = plan.step
                plans.put(plan)
            is_closed = news.closed
        plans.put(RuntimeError(f"the plans of {name} are closed behind {last}"))


if __name__ == "__main__":
    main()
