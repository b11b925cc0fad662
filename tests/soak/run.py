"""One long run: `./chairlift up` under mixed load, looked at every half minute."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from redis import Redis

from cli.bench.http import Server
from common.model_files import locate
from common.tokenizer import Tokenizer
from tests.soak.habits import Clients
from tests.soak.watch import POOL, Sample, Watch
from tests.system.started import Started, start

QUIET_SECONDS = 30.0  # until all that was asked is over
MARGIN_SECONDS = 2.0  # beyond the life of a journal, until it is gone
MAX_CLIENTS = 256
NUM_BURST = 200  # clients at once at the end of the warm-up: pools of connections and threads fill


@dataclass(frozen=True)
class Options:
    minutes: float = 30.0  # of load, behind the warm-up
    warm_up_minutes: float = 10.0  # a scheduler takes as long until its allocator has enough
    rate: float = 7.0  # clients a second
    seed: int = 0
    sample_seconds: float = 30.0
    journal_seconds: int = 60

    def flags(self) -> tuple[str, ...]:
        return (
            *("--gateways=2", "--backend=simulated", "--step-ms=20", "--num-blocks=2048"),
            *(f"--journal-seconds={self.journal_seconds}", "--timeline-entries=1000"),
        )


@dataclass
class Outcome:
    """What happened."""

    warm: Sample  # at rest, behind the warm-up
    rest: Sample  # at rest, behind the load
    samples: list[Sample]  # under load
    outcomes: Counter[str]
    num_tokens: int
    client_cpu_seconds: float
    wrong: list[str]


async def run(options: Options, folder: Path, tell: Callable[[Sample], None]) -> Outcome:
    """`folder` is empty; `tell` gets each sample when it is taken."""
    began = time.monotonic()
    system = await asyncio.to_thread(start, folder, *options.flags())
    try:
        with Redis.from_url(system.redis_url(), decode_responses=True) as redis:
            run = _Run(options, system, redis, folder, began, tell)
            outcome = await run.all()
    finally:
        status = await asyncio.to_thread(system.stop)
    if status:
        outcome.wrong.append(f"`up` ended with {status}")
    return outcome


class _Run:
    def __init__(
        self,
        options: Options,
        system: Started,
        redis: "Redis",
        folder: Path,
        began: float,
        tell: Callable[[Sample], None],
    ) -> None:
        files = locate("embedded", folder)
        self.options = options
        self.redis = redis
        self.began = began
        self.tell = tell
        self.rng = random.Random(options.seed)
        self.watch = Watch(system.process.pid, redis, folder)
        server = Server.parse(system.url)
        token_bytes = Tokenizer.load(files).token_bytes
        self.clients = Clients(server, redis, files.name, token_bytes, self.rng)

    async def all(self) -> Outcome:
        await self._load(60 * self.options.warm_up_minutes)
        await self._burst()
        warm = await self._rest()
        self.clients.outcomes.clear()
        self.clients.num_tokens = 0
        cpu = time.process_time()
        samples = await self._load(60 * self.options.minutes)
        cpu = time.process_time() - cpu
        rest = await self._rest()
        clients = self.clients
        return Outcome(
            warm, rest, samples, clients.outcomes, clients.num_tokens, cpu, clients.wrong
        )

    async def _load(self, seconds: float) -> list[Sample]:
        """Clients come at random, so many a second on average, whatever became of the others."""
        loop = asyncio.get_running_loop()
        samples: list[Sample] = []
        until, next_sample = loop.time() + seconds, loop.time() + self.options.sample_seconds
        slots = asyncio.Semaphore(MAX_CLIENTS)
        async with asyncio.TaskGroup() as tasks:
            while loop.time() < until:
                await asyncio.sleep(self.rng.expovariate(self.options.rate))
                await slots.acquire()
                client = tasks.create_task(self.clients.one(), name="client")
                client.add_done_callback(lambda _: slots.release())
                if loop.time() >= next_sample:
                    next_sample += self.options.sample_seconds
                    samples.append(await self._sample())
        return samples

    async def _burst(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(NUM_BURST):
                tasks.create_task(self.clients.one(), name="client")

    async def _rest(self) -> Sample:
        """Once nobody asks, nothing runs, and what is kept for a while is gone."""
        try:
            async with asyncio.timeout(QUIET_SECONDS):
                while self._is_busy():  # noqa: ASYNC110 - nothing tells when it is over
                    await asyncio.sleep(0.1)
        except TimeoutError:
            self.clients.wrong.append(f"not quiet after {QUIET_SECONDS:g} s")
        await asyncio.sleep(self.options.journal_seconds + MARGIN_SECONDS)
        return await self._sample()

    def _is_busy(self) -> bool:
        return bool(self.redis.xlen(f"{POOL}requests") or self.redis.xlen(f"{POOL}control"))

    async def _sample(self) -> Sample:
        sample = await asyncio.to_thread(self.watch.sample, time.monotonic() - self.began)
        self.tell(sample)
        return sample
