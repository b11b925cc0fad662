"""A worker process of two ranks answers, ends when one of them does, and its heir goes on."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from common.config import WorkerSettings
from common.messages import Ending, RequestId, Sampling
from gpu_worker.loading import load_engine
from tests.conftest import MakeRedisBus
from tests.gpu_worker.driving import Driver, make_request
from tests.gpu_worker.tiny import make_reference
from tests.system.pool import Client, Pool, until
from tests.valkey import ValkeyServer

PROMPT, NUM_TOKENS = tuple(range(3, 40)), 80
SAMPLINGS = (Sampling(seed=0, temperature=0.0), Sampling(seed=7, temperature=0.8, top_p=0.95))
START_SECONDS = 60.0  # torch is loaded twice, on the cores of one


@contextmanager
def worker(valkey: ValkeyServer, pool: str, model: Path) -> Iterator["subprocess.Popen[str]"]:
    flags = {
        **{"redis-url": valkey.url, "pool": pool, "model": str(model), "tensor-parallel": "2"},
        **{"dtype": "float32", "kernels": "torch", "threads": "2", "num-blocks": "64"},
        **{"beat-seconds": "0.1", "max-rows": "8"},
    }
    command = [sys.executable, "-m", "gpu_worker"]
    for name, value in flags.items():
        command += [f"--{name}", value]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def alone(model: Path) -> list[list[int]]:
    """The answers of one rank."""
    settings = WorkerSettings(model=str(model), dtype="float32", kernels="torch", num_blocks=64)
    driver = Driver(load_engine(settings))
    requests = [
        make_request(f"r.{index}", PROMPT, Ending(NUM_TOKENS), sampling)
        for index, sampling in enumerate(SAMPLINGS)
    ]
    answers = driver.run(requests)
    return [answers[RequestId(f"r.{index}")] for index in range(len(SAMPLINGS))]


async def test_a_worker_of_two_ranks(
    valkey: ValkeyServer, redis_bus: MakeRedisBus, pool: str, tmp_path: Path
) -> None:
    make_reference("llama").save_pretrained(tmp_path)
    parts, client, bus = Pool(redis_bus), Client(redis_bus()), redis_bus()
    parts.scheduler()

    async def is_there() -> bool:
        return bool(await bus.workers())

    async with client.listening():
        requests = [
            await client.submit(PROMPT, NUM_TOKENS, sampling=sampling) for sampling in SAMPLINGS
        ]
        with worker(valkey, pool, tmp_path) as first:
            await until(is_there, START_SECONDS)
            [hello] = (await bus.workers()).values()
            assert hello.device == "cpu (torch kernels), 2 ranks"
            await client.until(lambda: len(client.tokens.get(requests[0], ())) > 5, 30.0)
            [follower] = psutil.Process(first.pid).children()
            os.kill(follower.pid, signal.SIGKILL)
            assert await asyncio.to_thread(first.wait, 5) == 1
        assert not client.ended
        with worker(valkey, pool, tmp_path) as second:
            answers = [await client.answer(request, START_SECONDS) for request in requests]
            [follower] = psutil.Process(second.pid).children()
            second.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(second.wait, 10) == 0
            assert not psutil.wait_procs([follower], 5)[1]
        await until(lambda: no_worker(bus))
        await bus.leave_gateway(client.gateway)
    await parts.stop()
    assert [tokens for tokens, _ in answers] == await asyncio.to_thread(alone, tmp_path)


async def no_worker(bus: object) -> bool:
    return not await bus.workers()  # type: ignore[attr-defined]
