"""What tokens cost one gateway, and how many of them it can stream to its clients in a second.

    python -m tests.bench.gateway_frames [--streams 256] [--rates 25 50 75] [--pin]

A real server and a real gateway process; scheduler and worker are played here, and the clients are
one process that only reads. Every 1/rate seconds one commit gives each stream one token. A gateway
*keeps up* if every token arrives and the 99th percentile of the time from the beginning of a commit
until its tokens are with the clients is at most `--lag-ms`. Rates are tried until one is too much.
With `--pin` the gateway has one core for itself, and all others have the rest. The server's data
lies in the temporary folder (TMPDIR); on a disk its writes are part of the lag. Refuses to report
where a stream lacks a token, repeats one, or says another text.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import uvloop

from cli.bench.report import percentile
from common.config import environment
from common.model_files import EMBEDDED, locate
from common.redis_bus import RedisBus
from common.tokenizer import Tokenizer
from tests.bench.readers import Readings, read_streams
from tests.bench.scripted_pool import ScriptedPool
from tests.bench.servers import free_port, machine
from tests.valkey import ValkeyServer

SETTLE_SECONDS = 1.5  # until the gateway has seen the pool's beat move
BUSY = 0.95  # of a core: no more to have
STARVED = 0.15  # of the time without the core that it wants: it is not the gateway that is measured
FIRST_TOKEN, NUM_TOKENS = 1000, 2000  # where the words of the embedded model are


@dataclass(frozen=True)
class Measured:
    """One rate. CPU and lag of the time in which all streams are fed."""

    rate: float  # commits a second, as asked for
    tokens_per_second: float  # that arrived
    keeps_up: bool
    lag_p50_ms: float  # from the beginning of a commit to the tokens' arrival at the clients
    lag_p99_ms: float
    lag_max_ms: float
    gateway_ms_per_1000_tokens: float
    frames_per_read: float  # frames that were ready together and came in one piece
    cores: dict[str, float]  # kept busy, by role: 1 is a whole core
    waits: float  # share of the time for which the gateway wanted a core and had none
    limit: str


def main() -> None:
    options = arguments()
    cores, where = sorted(os.sched_getaffinity(0)), machine()
    own, others = ([cores[-1]], cores[:-1]) if options.pin else (cores, cores)
    os.sched_setaffinity(0, others)
    server, port = ValkeyServer().start(), free_port()
    gateway = start_gateway(server.url, port)
    psutil.Process(gateway.pid).cpu_affinity(own)
    try:
        measured = uvloop.run(Bench(gateway, port, options, others).run(server.url))
    finally:
        gateway.terminate()
        gateway.wait(30)
        server.close()
    if options.json:
        print(json.dumps({"machine": where, "runs": [asdict(run) for run in measured]}))
    else:
        print(table(measured, options, where))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rates", type=float, nargs="+", default=[25, 50, 75, 100, 125, 150])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--lag-ms", type=float, default=100.0)
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def start_gateway(url: str, port: int) -> subprocess.Popen[bytes]:
    flags = ["--redis-url", url, "--pool", "bench", "--port", str(port)]
    flags += ["--served-model-name", "bench", "--log-level", "warning"]
    return subprocess.Popen([sys.executable, "-m", "gateway", *flags], env=environment())


class Bench:
    def __init__(
        self,
        gateway: subprocess.Popen[bytes],
        port: int,
        options: argparse.Namespace,
        cores: Sequence[int],
    ) -> None:
        """`cores`: of all but the gateway."""
        self.gateway = psutil.Process(gateway.pid)
        self.port = port
        self.options = options
        self.cores = cores
        self.tokens, self.texts = words()

    async def run(self, url: str) -> list[Measured]:
        bus = RedisBus(url, "bench")
        await bus.connect()
        pool = ScriptedPool(bus)
        await pool.start()
        await self._until_it_listens()
        measured: list[Measured] = []
        async with asyncio.TaskGroup() as tasks:
            beat = tasks.create_task(pool.run())
            await asyncio.sleep(SETTLE_SECONDS)
            for rate in self.options.rates:
                measured.append(await self._measure(pool, rate))
                print(summary(measured[-1]), file=sys.stderr)
                if not measured[-1].keeps_up:
                    break
            beat.cancel()
        await bus.aclose()
        return measured

    async def _until_it_listens(self) -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                return

    async def _measure(self, pool: ScriptedPool, rate: float) -> Measured:
        num_tokens, streams = round(rate * self.options.seconds), self.options.streams
        tokens = [self.tokens[i % len(self.tokens)] for i in range(num_tokens)]
        texts = [self.texts[i % len(self.texts)] for i in range(num_tokens)]
        here, there = multiprocessing.Pipe()
        args = (there, self.port, streams, texts, self.cores)
        clients = multiprocessing.get_context("spawn").Process(target=read_streams, args=args)
        clients.start()
        taken = await pool.take(streams)
        before = self._used()
        committed = await pool.feed(taken, tokens, rate)
        used = {role: cpu - before[role] for role, cpu in self._used().items()}
        await pool.end(taken, num_tokens)
        found = await asyncio.to_thread(here.recv)
        clients.join()
        if not isinstance(found, Readings):
            raise SystemExit(f"{rate:g} a second: {found}")
        return self._measured(rate, committed, found, used)

    def _used(self) -> dict[str, float]:
        """CPU seconds by role, the clients' aside; `wall` is the clock, `waits` the gateway's."""
        own = psutil.Process()
        [server] = [child for child in own.children() if "valkey" in child.name()]
        processes = {"gateway": self.gateway, "Valkey": server, "played pool": own}
        times = {role: process.cpu_times() for role, process in processes.items()}
        used = {role: t.user + t.system for role, t in times.items()}
        return used | {"wall": time.monotonic(), "waits": waited_seconds(self.gateway.pid)}

    def _measured(
        self, rate: float, committed: list[float], found: Readings, used: dict[str, float]
    ) -> Measured:
        lags = sorted(lags_of(found.arrivals, committed))
        wall = used.pop("wall")
        waits = used.pop("waits") / wall
        last = max(arrivals[-1] for arrivals in found.arrivals)
        cores = {role: cpu / wall for role, cpu in used.items()}
        cores["clients"] = found.cpu_seconds / wall
        p99 = 1e3 * percentile(lags, 99)
        return Measured(
            rate=rate,
            tokens_per_second=found.num_frames / (last - committed[0]),
            keeps_up=p99 <= self.options.lag_ms,
            lag_p50_ms=1e3 * percentile(lags, 50),
            lag_p99_ms=p99,
            lag_max_ms=1e3 * lags[-1],
            gateway_ms_per_1000_tokens=1e6 * used["gateway"] / found.num_frames,
            frames_per_read=found.num_frames / found.num_reads,
            cores=cores,
            waits=waits,
            limit=limit(cores, len(self.cores), waits),
        )


def words() -> tuple[list[int], list[str]]:
    """Tokens that are text by themselves, and their texts: each gives one frame."""
    tokenizer = Tokenizer.load(locate(EMBEDDED, Path()))  # as the gateway has by default
    found = {t: tokenizer.token_bytes(t) for t in range(FIRST_TOKEN, FIRST_TOKEN + NUM_TOKENS)}
    plain = {token: data.decode() for token, data in found.items() if data and data.isascii()}
    return list(plain), list(plain.values())


def lags_of(streams: Sequence[list[float]], committed: Sequence[float]) -> list[float]:
    return [
        arrival - moment
        for arrivals in streams
        for arrival, moment in zip(arrivals, committed, strict=True)
    ]


def waited_seconds(pid: int) -> float:
    """For which its main thread could have run, had there been a core for it."""
    _, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(waited) / 1e9


def limit(cores: dict[str, float], num_others: int, waits: float) -> str:
    """What has no more to give."""
    others = sum(busy for role, busy in cores.items() if role != "gateway")
    if waits > STARVED:
        return "other programs on the gateway's core"
    if cores["gateway"] > BUSY:
        return "the gateway's core"
    if cores["clients"] > BUSY or others > BUSY * num_others:
        return "the cores of the others"
    return "nothing"


def summary(run: Measured) -> str:
    cores = ", ".join(f"{role} {busy:.2f}" for role, busy in run.cores.items())
    return (
        f"{run.rate:g} a second: {run.tokens_per_second:,.0f} tokens/s,"
        f" {'keeps up' if run.keeps_up else 'does not keep up'}; cores: {cores}"
    )


def table(measured: list[Measured], options: argparse.Namespace, where: str) -> str:
    pinned = ", the gateway on a core of its own" if options.pin else ""
    lines = [
        f"{where}; {options.streams} streams, one token a frame{pinned}",
        "",
        "| tokens/s | keeps up | lag p50, p99, max, ms | gateway: core | it waits for it"
        " | ms for 1,000 tokens | frames a read | Valkey, pool, clients: cores | limit |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for run in measured:
        lags = f"{run.lag_p50_ms:.1f}, {run.lag_p99_ms:.1f}, {run.lag_max_ms:.1f}"
        others = ", ".join(f"{run.cores[r]:.2f}" for r in ("Valkey", "played pool", "clients"))
        lines.append(
            f"| {run.tokens_per_second:,.0f} | {'yes' if run.keeps_up else 'no'} | {lags}"
            f" | {run.cores['gateway']:.2f} | {run.waits:.2f}"
            f" | {run.gateway_ms_per_1000_tokens:.1f}"
            f" | {run.frames_per_read:.2f} | {others} | {run.limit} |"
        )
    best = max((run.tokens_per_second for run in measured if run.keeps_up), default=0.0)
    lines += ["", f"keeps up with {best:,.0f} tokens/s"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
