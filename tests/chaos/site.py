"""The system under test: an embedded server, gateways, schedulers and workers, each a process.

Between each of them and the server is a link of its own.
"""

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from cli import embedded
from cli.bench.http import ExchangeError, Server, exchange
from cli.processes import MODULES, ONE_THREAD, QUIET
from common.config import environment, variable
from tests.chaos.link import Link
from tests.chaos.process import Process

COUNTS = {"gateway": 2, "scheduler": 2, "worker": 2}
REDIS = "redis"
POOL = "default"
PREFIX = f"chairlift:{{{POOL}}}:"
SERVER_BYTES = 512 << 20
START_SECONDS = 60.0
ANSWER_SECONDS = 1.0
DRAIN_SECONDS = 3
JOURNAL_SECONDS = 3600  # all journals still stand when the ledger is checked
FLAGS = {
    "gateway": (f"--drain-seconds={DRAIN_SECONDS}", "--keep-alive-seconds=1"),
    "scheduler": (f"--journal-seconds={JOURNAL_SECONDS}", "--timeline-entries=1000000"),
    "worker": (
        *("--backend=simulated", "--step-ms=5", "--num-blocks=2048"),
        f"--drain-seconds={DRAIN_SECONDS}",
    ),
}


class Site:
    """Used within `running`."""

    def __init__(self, folder: Path, counts: Mapping[str, int] = COUNTS) -> None:
        """`counts` of processes, by role."""
        self.folder = folder
        self.counts = counts
        self.server = embedded.make(folder, SERVER_BYTES, None)
        self.ports = [_free_port() for _ in range(counts["gateway"])]
        self.links: dict[str, Link] = {}
        self.processes: dict[str, Process] = {}
        self.peak_mib: dict[str, float] = {}

    def names(self, role: str) -> list[str]:
        """Of the processes of a role: `leader` and `standby` are roles of schedulers."""
        if role not in ("leader", "standby"):
            return [name for name in self.processes if name.partition("-")[0] == role]
        schedulers, leader = self.names("scheduler"), self._leader()
        return [name for name in schedulers if (name == leader) is (role == "leader")]

    def redis(self) -> Redis:
        """To the server itself, past all links. RedisError: it may stand still."""
        return Redis.from_url(self.server.url, decode_responses=True, socket_timeout=ANSWER_SECONDS)

    async def until_it_answers(self, seconds: float) -> None:
        """The server; TimeoutError."""
        await until(self._answers, seconds)

    async def until_whole(self, seconds: float) -> None:
        """Every process is here and does what it is for; TimeoutError."""
        await until(self._is_whole, seconds)
        for port in self.ports:
            await _until_ready(port)

    def watch_memory(self) -> None:
        for name, process in self.processes.items():
            self.peak_mib[name] = max(self.peak_mib.get(name, 0.0), process.anonymous_mib())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Site"]:
        (self.folder / "logs").mkdir()
        self.server.prepare()
        try:
            async with asyncio.TaskGroup() as lives:
                tasks = [self._start(lives, REDIS, self.server.command, environment())]
                await self.until_it_answers(START_SECONDS)
                for role, count in self.counts.items():
                    for number in range(count):
                        link = self.links[f"{role}-{number}"] = Link(self.server.socket)
                        await link.open()
                        tasks.append(self._start_service(lives, role, number, link))
                await self.until_whole(START_SECONDS)
                yield self
                for task in tasks:
                    task.cancel()
        finally:
            for link in self.links.values():
                await link.close()
            self.server.remove()

    def _start_service(
        self, lives: asyncio.TaskGroup, role: str, number: int, link: Link
    ) -> "asyncio.Task[None]":
        flags = [*FLAGS[role], "--log-format=json"]
        if role != "scheduler":
            flags.append(f"--data-dir={self.folder}")
        if role == "gateway":
            flags.append(f"--port={self.ports[number]}")
        url = f"redis://:{self.server.password}@127.0.0.1:{link.port}/0"
        environ = environment(QUIET | ONE_THREAD | {variable("redis_url"): url})
        command = (sys.executable, "-m", MODULES[role], *flags)
        return self._start(lives, f"{role}-{number}", command, environ)

    def _start(
        self, lives: asyncio.TaskGroup, name: str, command: tuple[str, ...], environ: dict[str, str]
    ) -> "asyncio.Task[None]":
        process = Process(name, command, environ, self.folder / "logs" / f"{name}.log")
        self.processes[name] = process
        return lives.create_task(process.run(), name=name)

    def _leader(self) -> str:
        """The scheduler that holds the lease, by what each says of itself; "": nobody can tell."""
        try:
            with self.redis() as redis:
                holder = redis.hget(PREFIX + "lease", "holder")
        except (RedisError, OSError):
            return ""
        for name in self.names("scheduler"):
            for line in reversed(self.processes[name].log.read_text().splitlines()):
                if '"standing by"' in line:
                    if json.loads(line)["scheduler"] == holder:
                        return name
                    break
        return ""

    def _answers(self) -> bool:
        try:
            with self.redis() as redis:
                return bool(redis.ping())
        except (RedisError, OSError):
            return False

    def _is_whole(self) -> bool:
        """Somebody leads and says so, with all workers and no other, and all processes run."""
        try:
            with self.redis() as redis:
                epoch = redis.hget(PREFIX + "lease", "epoch")
                summary = redis.hget(PREFIX + "status", "summary")
                num_workers = redis.hlen(PREFIX + "workers")
        except (RedisError, OSError):
            return False
        leads = bool(summary) and str(json.loads(summary)["epoch"]) == epoch
        runs = all(process.pid for process in self.processes.values())
        stand_by = all(
            self.processes[name].has_said("standing by") for name in self.names("scheduler")
        )
        return leads and runs and stand_by and num_workers == self.counts["worker"]


async def until(condition: Callable[[], bool], seconds: float) -> None:
    """TimeoutError."""
    async with asyncio.timeout(seconds):
        # In a thread, since it may have to wait for the server.
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.1)


def continue_all(site: Site) -> None:
    """Nothing is stopped, cut or frozen any more."""
    for process in site.processes.values():
        process.signal(signal.SIGCONT)
    for link in site.links.values():
        link.mend()


async def _until_ready(port: int) -> None:
    server, status = Server("127.0.0.1", port, False, "", {}), 0
    async with asyncio.timeout(START_SECONDS):
        while status != 200:
            with contextlib.suppress(ExchangeError, OSError):
                status = await exchange(server, server.request("GET", "/ready"), lambda _: None)
            await asyncio.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
