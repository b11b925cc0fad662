"""Once all is quiet: what Redis says of every request, and what is left in it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from redis import Redis
from redis.exceptions import RedisError

from tests.chaos import journals
from tests.chaos.answer import Answer
from tests.chaos.site import POOL, PREFIX, REDIS, Site
from tests.conftest import leftovers

MAX_MIB = 300.0  # of each process but the server, whose journals and timeline are kept on purpose


@dataclass(frozen=True)
class Direct:
    """What `leftovers` asks."""

    site: Site

    def client(self) -> Redis:
        return Redis.from_url(self.site.server.url)


def is_quiet(site: Site) -> bool:
    """Nobody waits or runs, and the leader has said so with all workers here."""
    try:
        with site.redis() as redis:
            num_open, num_workers = redis.xlen(PREFIX + "requests"), redis.hlen(PREFIX + "workers")
            summary = json.loads(redis.hget(PREFIX + "status", "summary") or "{}")
        is_idle = summary.get("num_running") == summary.get("num_waiting") == num_open == 0
        is_whole = num_workers == site.counts["worker"]
        return is_idle and is_whole and not left(site) and not held_blocks(site)
    except (RedisError, OSError):
        return False


def left(site: Site) -> list[str]:
    """Keys without a time to live that nothing which lives needs."""
    with site.redis() as redis:
        workers = redis.hkeys(PREFIX + "workers")
    live = {f"{kind}:{worker}" for kind in ("steps", "results") for worker in workers}
    return [key for key in leftovers(Direct(site), POOL) if key not in live]  # type: ignore[arg-type]


def held_blocks(site: Site) -> list[str]:
    with site.redis() as redis:
        workers = json.loads(redis.hget(PREFIX + "status", "workers") or "[]")
    if len(workers) != site.counts["worker"]:
        return [f"{len(workers)} workers in the status"]
    return [
        f"{worker['worker']}: {worker['free_blocks']} of {worker['num_blocks']} blocks are free"
        for worker in workers
        if worker["free_blocks"] != worker["num_blocks"]
    ]


async def check(site: Site, answers: Sequence[Answer]) -> list[str]:
    """All that is wrong."""
    wrong = [text for answer in answers for text in answer.wrong]
    wrong += [
        f"{answer.wish.key}: not over after {answer.num_connections} connections"
        for answer in answers
        if answer.outcome == "unfinished"
    ]
    wrong += await journals.check(site, answers)
    wrong += [f"without a time to live: {key}" for key in left(site)]
    return [*wrong, *held_blocks(site), *_check_processes(site)]


def _check_processes(site: Site) -> Iterator[str]:
    for name, process in site.processes.items():
        yield from process.deaths
        if name != REDIS and site.peak_mib[name] > MAX_MIB:
            yield f"{name} had {site.peak_mib[name]:.0f} MiB"


def tokens_computed(site: Site) -> int:
    """Of prompts and answers, in all steps of all leaders."""
    with site.redis() as redis:
        entries = redis.xrange(PREFIX + "timeline")
    return sum(json.loads(next(iter(fields.values())))["tokens"] for _, fields in entries)
