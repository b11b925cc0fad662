"""GPUs are claimed once each, given back, and taken over from the dead."""

import asyncio
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator

import pytest
import torch

from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from common.redis_bus import RedisBus
from common.redis_bus.keys import gpu as gpu_key
from gpu_worker.backend import candidates
from gpu_worker.claims import ClaimLostError, Claims, Gpu
from gpu_worker.engine import EngineError
from tests.valkey import ValkeyServer

SECONDS = 0.4  # without a beat until a holder is given up
BEAT_SECONDS = 0.05
Bus = MemoryBus | RedisBus


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["memory", "redis"])
async def bus(request: pytest.FixtureRequest, pool: str) -> AsyncIterator[Bus]:
    if request.param == "memory":
        yield MemoryBus(MemoryServer())
        return
    redis = RedisBus(request.getfixturevalue("valkey").url, pool)
    yield redis
    await redis.aclose()


@pytest.fixture
def gpus() -> list[Gpu]:
    return [Gpu(f"GPU-{uuid.uuid4()}", f"cuda:{index}") for index in range(4)]


def claims(bus: Bus, holder: str) -> Claims:
    return Claims(bus, holder, SECONDS)


async def test_each_takes_the_first_that_nobody_has(bus: Bus, gpus: list[Gpu]) -> None:
    one, two = claims(bus, "one"), claims(bus, "two")
    assert await one.claim(gpus, 1) == gpus[:1]
    assert await two.claim(gpus, 2) == gpus[1:3]
    await one.leave()
    assert await claims(bus, "three").claim(gpus, 1) == gpus[:1]


async def test_many_at_once_share_nothing(bus: Bus, gpus: list[Gpu]) -> None:
    """Each needs two, so that one of them may find itself with half of that."""
    taken = await asyncio.gather(*(claims(bus, name).claim(gpus, 2) for name in ("one", "two")))
    assert sorted(gpu.name for each in taken for gpu in each) == [gpu.name for gpu in gpus]


async def test_who_shows_life_keeps_its_gpu_and_is_named(bus: Bus, gpus: list[Gpu]) -> None:
    holder = claims(bus, "node1-7a3e")
    await holder.claim(gpus[1:2], 1)
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(holder.keep(BEAT_SECONDS))
        with pytest.raises(EngineError, match=r"^1 of 1 GPUs .* cuda:1 is held by node1-7a3e: "):
            await claims(bus, "two").claim(gpus[1:2], 1)
        keeping.cancel()


async def test_the_dead_are_given_up_and_would_notice(bus: Bus, gpus: list[Gpu]) -> None:
    dead, heir = claims(bus, "one"), claims(bus, "two")
    await dead.claim(gpus, 2)
    began = asyncio.get_running_loop().time()
    assert await heir.claim(gpus[:2], 2) == gpus[:2]
    assert asyncio.get_running_loop().time() - began > 0.9 * SECONDS
    with pytest.raises(ClaimLostError, match=rf"took over cuda:0 \({gpus[0].id}\)"):
        await dead.keep(0.0)
    await dead.leave()
    assert [lease.holder for lease in await bus.gpu_leases([gpu.id for gpu in gpus[:2]])] == [
        "two",
        "two",
    ]


async def test_a_beat_that_nobody_could_raise_says_nothing(gpus: list[Gpu]) -> None:
    """The server was away: time passed for the watcher, and for no holder."""
    bus, clock = MemoryBus(MemoryServer()), FakeClock()
    await claims(bus, "one").claim(gpus[:1], 1)
    watcher = Claims(bus, "two", 10.0, clock)
    for clock.now in (0.0, 4.0, 8.0, 20.0, 24.0, 28.0):  # none for twelve seconds
        await watcher._look(gpus[:1])
        assert not watcher._is_free(gpus[0])
    clock.now = 30.0
    await watcher._look(gpus[:1])
    assert watcher._is_free(gpus[0])


async def test_nobody_is_left_with_half_of_what_it_needs(gpus: list[Gpu]) -> None:
    bus = MemoryBus(MemoryServer())
    both = claims(bus, "both")
    await both._look(gpus[:2])
    await claims(bus, "quick").claim(gpus[1:2], 1)
    assert not await both._take(gpus[:2])
    assert [lease.holder for lease in await bus.gpu_leases([gpu.id for gpu in gpus[:2]])] == [
        "",
        "quick",
    ]


@pytest.mark.parametrize(
    ("device", "num_ranks", "expected"),
    [
        ("cuda", 1, [0, 1, 2, 3]),
        ("cuda", 4, [0, 1, 2, 3]),
        ("cuda:2", 1, [2]),
        ("cuda:1", 2, "take --device auto"),
        ("cuda:4", 1, "--device cuda:4: this process sees 4 GPUs"),
        ("cuda", 5, "--tensor-parallel 5: this process sees 4 GPUs"),
    ],
)
def test_which_gpus_may_be_taken(
    gpus: list[Gpu], device: str, num_ranks: int, expected: list[int] | str
) -> None:
    if isinstance(expected, str):
        with pytest.raises(EngineError, match=expected):
            candidates(torch.device(device), num_ranks, gpus)
    else:
        found = candidates(torch.device(device), num_ranks, gpus)
        assert list(found) == [gpus[index] for index in expected]


HOLD = """
import sys, time
from common.config import WorkerSettings
from gpu_worker.claim_thread import claimed
from gpu_worker.claims import Gpu
url, gpu, holder = sys.argv[1:]
settings = WorkerSettings(redis_url=url, beat_seconds=0.05)
with claimed(settings, holder, [Gpu(gpu, "cuda:0")], 1) as taken:
    print(taken[0].name, flush=True)
    sys.stdin.readline()
"""


def test_a_process_holds_its_gpu_until_it_ends_or_loses_it(
    valkey: ValkeyServer, gpus: list[Gpu]
) -> None:
    def hold(holder: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, valkey.url, gpus[0].id, holder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        assert process.stdout.readline() == "cuda:0\n"
        return process

    key = gpu_key(gpus[0].id)
    with valkey.client() as client:
        with hold("one") as one:
            assert client.hget(key, "holder") == b"one"
            one.communicate("\n")
        assert client.hgetall(key)[b"holder"] == b""  # type: ignore[index]
        with hold("two") as two:  # at once
            client.hset(key, mapping={"holder": "three", "epoch": "9", "beat": "0"})
            assert two.wait(10) == 1
            said = two.stderr.read() if two.stderr else ""
        assert said == f"chairlift worker: another worker took over cuda:0 ({gpus[0].id})\n"
        assert client.hget(key, "holder") == b"three"
