"""Ranks in lock-step: a follower does what rank 0 does, misses nothing, and ends with it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from common.bus import CloseSteps, Lease, Outcome, TrimSteps, Write, WritePlan
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from common.messages import StepPlan, StepResult, WorkerId
from common.redis_bus import RedisBus
from gpu_worker import followers as rank0
from gpu_worker.engine import Capacity, EngineError
from gpu_worker.follower import PlanReader, follow
from gpu_worker.followers import Followers, LeadingEngine
from gpu_worker.rank_channel import Channel
from gpu_worker.service import WorkerService
from tests.valkey import ValkeyServer

ONE, TWO = WorkerId("one"), WorkerId("two")
BAD, BROKEN = 13, 99  # steps that contradict the rows, or fail


class RecordingEngine:
    """Notes what it is told, in order."""

    capacity = Capacity("m", "cpu", 8, 16, 64, 32, 4)

    def __init__(self) -> None:
        self.told: list[str] = []

    def launch(self, plan: StepPlan) -> "Recorded":
        if plan.step == BAD:
            raise EngineError("contradiction")
        self.told.append(f"launch {plan.step}")
        return Recorded(plan.step, self.told)

    def execute(self, plan: StepPlan) -> StepResult:
        return self.launch(plan).finish()

    def reset(self) -> None:
        self.told.append("reset")


@dataclass(frozen=True)
class Recorded:
    step: int
    told: list[str]
    is_done: bool = True

    def wait(self) -> None: ...

    def finish(self) -> StepResult:
        if self.step == BROKEN:
            raise ZeroDivisionError
        self.told.append(f"finish {self.step}")
        return StepResult(self.step, (), 0.0)


class FollowerThread:
    """A follower in this process."""

    def __init__(self, rank: int, bus: RedisBus) -> None:
        self.rank = rank
        ours, theirs = socket.socketpair()
        self.channel, self.theirs = Channel(ours), Channel(theirs)
        self.engine, self.plans = RecordingEngine(), PlanReader(bus)
        self._pool = ThreadPoolExecutor(1)
        self.following = self._pool.submit(follow, self.theirs, self.engine, self.plans)

    def end(self) -> None:
        self.plans.close()
        self.channel.hang_up()
        self._pool.shutdown()
        self.theirs.hang_up()


class World:
    """Rank 0 with two followers, and what a scheduler writes for them."""

    def __init__(self, valkey: ValkeyServer, pool: str) -> None:
        self.bus = RedisBus(valkey.url, pool)
        self.epoch = 0
        self.threads = [FollowerThread(rank, RedisBus(valkey.url, pool)) for rank in (1, 2)]
        self.followers = Followers(self.threads)
        self.engine = LeadingEngine(RecordingEngine(), self.followers)

    @property
    def told(self) -> list[list[str]]:
        return [thread.engine.told for thread in self.threads]

    async def write(self, *writes: Write) -> None:
        if not self.epoch:
            lease = await self.bus.lease_take("scheduler", Lease())
            assert lease
            self.epoch = lease.epoch
        assert set(await self.bus.write(self.epoch, writes)) == {Outcome.OK}

    async def plan(self, worker: WorkerId, *steps: int) -> None:
        await self.write(*(WritePlan(worker, StepPlan(step)) for step in steps))

    async def begin(self, worker: WorkerId) -> None:
        await asyncio.to_thread(self.followers.begin_life, worker)

    async def execute(self, step: int) -> StepResult:
        return await asyncio.to_thread(self.engine.execute, StepPlan(step))


@pytest.fixture
async def world(valkey: ValkeyServer, pool: str) -> AsyncIterator[World]:
    made = World(valkey, pool)
    with made.followers:
        yield made
    await made.bus.aclose()


async def test_followers_launch_and_finish_in_the_order_of_rank_0(world: World) -> None:
    await world.plan(ONE, 1, 2, 3)
    await world.begin(ONE)
    first, second = (world.engine.launch(StepPlan(step)) for step in (1, 2))
    assert (await asyncio.to_thread(first.finish)).step == 1
    third = world.engine.launch(StepPlan(3))
    for launched in (second, third):
        await asyncio.to_thread(launched.finish)
    await world.begin(TWO)
    order = ["launch 1", "launch 2", "finish 1", "launch 3", "finish 2", "finish 3"]
    assert world.told == [["reset", *order, "reset"]] * 2


async def test_plans_that_rank_0_did_not_execute_are_dropped_with_the_life(world: World) -> None:
    """Its life ended by itself, without a word in `steps`."""
    await world.plan(ONE, 1, 2, 3)
    await world.begin(ONE)
    await world.execute(1)
    await world.begin(TWO)
    await world.plan(TWO, 1)
    await world.execute(1)
    await world.begin(ONE)
    assert world.told == [["reset", "launch 1", "finish 1"] * 2 + ["reset"]] * 2


async def test_no_result_before_every_follower_has_the_plan(world: World) -> None:
    """A plan that nothing was computed for would else be trimmed while one has not read it."""
    await world.begin(ONE)
    executing = asyncio.ensure_future(world.execute(1))
    done, _ = await asyncio.wait([executing], timeout=0.2)
    assert not done
    await world.plan(ONE, 1)
    assert (await asyncio.wait_for(executing, 5)).step == 1


async def test_a_plan_is_executed_although_the_life_was_closed_behind_it(world: World) -> None:
    await world.plan(ONE, 1, 2)
    await world.write(CloseSteps(ONE))
    await world.begin(ONE)
    for step in (1, 2):
        assert (await world.execute(step)).step == step


async def test_a_plan_that_contradicts_the_rows_ends_the_life_and_nothing_else(
    world: World,
) -> None:
    await world.plan(ONE, BAD)
    await world.begin(ONE)
    world.engine._engine = RecordingEngine()
    with pytest.raises(EngineError):
        await world.execute(BAD)
    await world.begin(TWO)
    await world.plan(TWO, 1)
    await world.execute(1)
    await world.begin(ONE)
    assert world.told == [["reset", "reset", "launch 1", "finish 1", "reset"]] * 2


@pytest.mark.parametrize(
    ("write", "message"),
    [(TrimSteps(ONE, 2), "plan 1 is gone"), (CloseSteps(ONE), "closed behind 2")],
    ids=["trimmed", "closed"],
)
async def test_a_follower_that_missed_a_plan_ends(world: World, write: Write, message: str) -> None:
    await world.plan(ONE, 1, 2)
    await world.write(write)
    await world.begin(ONE)
    for step in (1, 2, 3):
        world.engine.launch(StepPlan(step))
    for thread in world.threads:
        with pytest.raises(RuntimeError, match=message):
            await asyncio.wrap_future(thread.following)


async def test_a_step_that_fails_in_a_follower_ends_it(world: World) -> None:
    await world.plan(ONE, BROKEN)
    await world.begin(ONE)
    launched = world.engine.launch(StepPlan(BROKEN))
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(launched.finish)
    for thread in world.threads:
        with pytest.raises(ZeroDivisionError):
            await asyncio.wrap_future(thread.following)


async def test_no_life_begins_while_a_follower_hangs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank0, "NEXT_LIFE_SECONDS", 0.2)
    await world.begin(ONE)
    world.engine.launch(StepPlan(1))  # which is nowhere
    with pytest.raises(RuntimeError, match="rank 1 does not end its step"):
        await world.begin(TWO)
    await world.plan(ONE, 1)


async def test_ranks_know_the_name_of_each_life_before_anybody_else() -> None:
    server, announced = MemoryServer(), list[tuple[WorkerId, int]]()

    def announce(name: WorkerId) -> None:
        announced.append((name, len(server.hash("workers"))))

    engine = RecordingEngine()
    service = WorkerService(MemoryBus(server), engine, "host", 0.01, announce=announce)
    running = asyncio.ensure_future(service.run())
    for lives in (1, 2):
        async with asyncio.timeout(5):
            while not (registered := list(server.hash("workers"))):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        [name] = registered
        assert announced[-1] == (WorkerId(name.decode()), 0)
        assert len(announced) == len(engine.told) == lives
        server.hash("workers").clear()  # it is given up
    service.leave()
    await running


# --- Processes --------------------------------------------------------------------------------

LEAD = """
from common import log
from gpu_worker.followers import FollowerProcess, Followers
log.setup("info", "json")
with Followers([FollowerProcess(rank) for rank in (1, 2)]):
    print("started", flush=True)
    input()
"""


@contextmanager
def lead() -> Iterator[tuple["subprocess.Popen[str]", list[psutil.Process]]]:
    """A process that has two followers, which wait to be told what to load."""
    command = [sys.executable, "-c", LEAD]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "started\n"
        yield process, psutil.Process(process.pid).children()


def ignores(process: psutil.Process, number: signal.Signals) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    [mask] = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_followers_end_with_rank_0() -> None:
    with lead() as (process, followers):
        os.kill(process.pid, signal.SIGKILL)
        assert not psutil.wait_procs(followers, 5)[1]


def test_rank_0_and_the_other_followers_end_with_one() -> None:
    with lead() as (process, followers):
        os.kill(followers[1].pid, signal.SIGKILL)
        assert process.wait(5) == 1
        assert process.stderr
        assert "a rank of this worker has ended" in process.stderr.read()
        assert not psutil.wait_procs(followers, 5)[1]


def test_signals_are_rank_0s_to_obey() -> None:
    """Ctrl-C reaches all processes of a terminal."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    with lead() as (process, followers):
        for follower in followers:
            while not all(ignores(follower, number) for number in numbers):
                time.sleep(0.01)
            for number in numbers:
                os.kill(follower.pid, number)
        assert len(psutil.wait_procs(followers, 0.5)[1]) == 2
        process.communicate("\n", timeout=5)
        assert process.returncode == 0
        assert not psutil.wait_procs(followers, 5)[1]
