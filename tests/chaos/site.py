"""The system under test: an embedded server, gateways, schedulers and workers, each a process.

Between each of them and the server is a link of its own.
"""

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from cli import embedded
from cli.bench_http import ExchangeError, Server, exchange
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

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = embedded.make(folder, SERVER_BYTES, None)
        self.ports = [_free_port() for _ in range(COUNTS["gateway"])]
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
        """To the server itself, past all links."""
        return Redis.from_url(self.server.url, decode_responses=True)

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
                await until(self._answers, START_SECONDS)
                for role, count in COUNTS.items():
                    for number in range(count):
                        link = self.links[f"{role}-{number}"] = Link(self.server.socket)
                        await link.open()
                        tasks.append(self._start_service(lives, role, number, link))
                await until(self._has_workers, START_SECONDS)
                for port in self.ports:
                    await _until_ready(port)
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

    def _has_workers(self) -> bool:
        with self.redis() as redis:
            return bool(redis.hlen(PREFIX + "workers") == COUNTS["worker"])


async def until(condition: Callable[[], bool], seconds: float) -> None:
    """TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - nothing tells when it comes true
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
