"""One run: a whole system, attacked one way after the other, with its health asked all the time.

The probe of health is a process of its own: what it measures is the gateway, not the attacker.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from redis import Redis

from cli.bench.http import Server
from tests.abuse.attacks import ATTACKS, LONG, Target, body, expect, post
from tests.abuse.health import Answered
from tests.soak import verdict
from tests.soak.watch import POOL, Sample, Watch
from tests.system.started import ROOT, start

FLAGS = (
    *("--backend=simulated", "--step-ms=20", "--num-blocks=4096"),
    *("--journal-seconds=2", "--resume-grace-seconds=2", "--timeline-entries=1000"),
)
REST_SECONDS = 5.0  # until what is kept for a while is gone
NUM_FILL = 200  # requests at once
QUIET_SECONDS = 120.0  # until nothing runs any more


@dataclass(frozen=True)
class Outcome:
    calm: Answered
    health: dict[str, Answered]  # by attack
    before: Sample  # at rest, behind one round of all attacks
    after: Sample
    wrong: list[str]


async def run(
    folder: Path, scale: float, names: Sequence[str], tell: Callable[[str], None]
) -> Outcome:
    """In the long form each attack twice: what an allocator takes at the first time is no leak."""
    system = await asyncio.to_thread(start, folder, *FLAGS)
    try:
        with Redis.from_url(system.redis_url(), decode_responses=True) as redis:
            server = Server.parse(system.url)
            target = Target(server.host, server.port, scale, random.Random(0))
            watch = Watch(system.process.pid, redis, folder)
            calm = await _health(system.url, asyncio.sleep(max(1.0, 20.0 * scale)))
            wrong = await fill(target)
            health: dict[str, Answered] = {}
            for name in names if scale >= LONG else ():
                wrong += await ATTACKS[name](target)
            before = await rest(watch, redis, wrong)
            for name in names:
                began = time.monotonic()
                found: list[str] = []
                health[name] = await _health(system.url, _collect(ATTACKS[name](target), found))
                wrong += found
                seconds = time.monotonic() - began
                tell(f"{name:12} {seconds:5.1f} s, {len(found)} wrong; {line(health[name])}")
            after = await rest(watch, redis, wrong)
            wrong += [text for answered in health.values() for text in answered.failures]
            wrong += verdict.left_behind(before, after)
    finally:
        status = await asyncio.to_thread(system.stop)
    wrong += errors_in(folder / "logs" / "gateway-0.log")
    if status:
        wrong.append(f"`up` ended with {status}")
    return Outcome(calm, health, before, after, wrong)


async def fill(target: Target, num_words: int = 800) -> list[str]:
    """The gateway opens all connections to Redis and all threads that it may ever have."""
    request = post(body(prompt="word " * num_words), "Connection: close")
    async with asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(expect(target, "a request", {200}, request), name="fill")
            for _ in range(NUM_FILL)
        ]
    return [text for task in asked for text in task.result()]


async def _collect(attack: Awaitable[list[str]], found: list[str]) -> None:
    found += await attack


async def _health(url: str, during: Awaitable[None]) -> Answered:
    """What the probe measures until `during` is over."""
    probe = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.abuse.health", url),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert probe.stdin is not None
    assert probe.stdout is not None
    try:
        await probe.stdout.readline()  # it has begun
        await during
        probe.stdin.close()
        told = json.loads(await probe.stdout.read())
    finally:
        if probe.returncode is None:
            probe.kill()
        await probe.wait()
    return Answered(**told)


async def rest(watch: Watch, redis: "Redis", wrong: list[str]) -> Sample:
    """Once nothing runs any more."""
    until = time.monotonic() + QUIET_SECONDS
    while redis.xlen(f"{POOL}requests") or redis.xlen(f"{POOL}control"):
        if time.monotonic() > until:
            wrong.append(f"requests still run after {QUIET_SECONDS:g} s")
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(REST_SECONDS)
    return await asyncio.to_thread(watch.sample, time.monotonic())


def errors_in(log: Path) -> list[str]:
    """What the process itself takes for an error."""
    lines = [line for line in log.read_text().splitlines() if '"level":"error"' in line]
    return [f"{log.name}: {line[:300]}" for line in lines]


def line(answered: Answered) -> str:
    return (
        f"health of {len(answered.milliseconds)} probes p50 {answered.percentile(50):.1f},"
        f" p99 {answered.percentile(99):.1f}, at most {answered.milliseconds[-1]:.1f} ms"
    )
