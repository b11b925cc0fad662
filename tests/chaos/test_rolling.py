"""A rolling restart under load: each process that `./chairlift up` started is told to end, in turn.

No request fails for it, not even one whose client cannot come back.
"""

import asyncio
import json
import random
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from redis import Redis
from redis.exceptions import RedisError

from common.model_files import locate
from tests.chaos.answer import Answer, Wish
from tests.chaos.client import Client
from tests.chaos.site import PREFIX, until
from tests.chaos.wishes import Wishes
from tests.system.started import Started, start

pytestmark = pytest.mark.alone

FLAGS = ("--backend=simulated", "--gateways=2", "--schedulers=2", "--workers=2")
NUM_PROCESSES, NUM_WORKERS = 7, 2
CLIENTS = 4
BACK_SECONDS = 60.0  # on a busy machine


@pytest.mark.timeout(400)
async def test_no_request_fails_when_all_processes_are_restarted_in_turn(tmp_path: Path) -> None:
    system = await asyncio.to_thread(start, tmp_path, *FLAGS)
    try:
        answers = await answered_meanwhile(system)
    finally:
        status = await asyncio.to_thread(system.stop)
    assert status == 0
    assert [why(answer) for answer in answers if answer.outcome != "whole"] == []
    assert [text for answer in answers for text in answer.wrong] == []
    assert len(answers) > NUM_PROCESSES


def why(answer: Answer) -> tuple[str, ...]:
    return answer.outcome, answer.error, answer.refused_with(), repr(answer.wish)


async def answered_meanwhile(system: Started) -> list[Answer]:
    clients, enough = clients_of(system), asyncio.Event()
    await until(lambda: is_whole(system), BACK_SECONDS)
    async with asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(client.run(enough, None), name="client")
        for process in children(system):
            await asyncio.sleep(1.0)
            process.send_signal(signal.SIGTERM)
            # Whoever drains still runs; then `up` starts another in its place.
            await until(partial(has_ended, process), BACK_SECONDS)
            await until(lambda: is_whole(system), BACK_SECONDS)
        enough.set()
    return [answer for client in clients for answer in client.answers]


def clients_of(system: Started) -> list[Client]:
    wishes = Wishes(locate("embedded", system.data_dir))
    port = urlsplit(system.url).port
    assert port is not None

    def without_key(rng: random.Random, key: str) -> Wish:
        return replace(wishes.steady(rng, key), key="")

    return [
        Client(
            number,
            random.Random(number),
            [port],
            wishes,
            wishes.steady if number % 2 else without_key,
            lambda _: None,
        )
        for number in range(CLIENTS)
    ]


def children(system: Started) -> list[psutil.Process]:
    return list(psutil.Process(system.process.pid).children())


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running()


def is_whole(system: Started) -> bool:
    """All processes are here, and somebody leads with all workers and no other."""
    try:
        with Redis.from_url(system.redis_url(), socket_timeout=1.0) as redis:
            epoch = redis.hget(PREFIX + "lease", "epoch")
            summary = redis.hget(PREFIX + "status", "summary")
            num_workers = redis.hlen(PREFIX + "workers")
    except (RedisError, OSError):
        return False
    leads = bool(summary) and str(json.loads(summary)["epoch"]).encode() == epoch
    return leads and num_workers == NUM_WORKERS and len(children(system)) == NUM_PROCESSES
