"""Who is taken, who is told to come back, and whether the pool moves; nearly all of it pure."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from common.bus import FullError, Status, UnavailableError
from common.hashes import STATUS_FIELD, status_value
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from common.messages import Ending, GatewayId, Sampling, SubmissionId, Submit, WorkerHello, WorkerId
from common.metrics import GatewayMetrics
from gateway import health
from gateway.admission import (
    MAX_RETRY_SECONDS,
    Load,
    QueueLimits,
    num_tokens,
    refuse,
    refused_by_bus,
)
from gateway.health import LEADER_SECONDS, Monitor, Progress

LIMITS = QueueLimits(max_queue=10, max_queue_tokens=1000)
IDLE = Load(has_leader=True)


def submit_of(num_prompt: int = 10, n: int = 1, deadline: float | None = None) -> Submit:
    return Submit(
        SubmissionId("s"),
        ((1,) * num_prompt,),
        n,
        Sampling(0),
        Ending(10),
        GatewayId("g"),
        deadline_seconds=deadline,
    )


def test_an_idle_pool_takes_it() -> None:
    assert refuse(submit_of(), IDLE, LIMITS) is None


def test_without_a_leader_nothing_is_taken() -> None:
    refused = refuse(submit_of(), Load(has_leader=False), LIMITS)
    assert refused is not None
    assert (refused.status, refused.code) == (503, "no_scheduler")


@pytest.mark.parametrize(("num_open", "is_taken"), [(9, True), (10, False), (11, False)])
def test_the_line_is_bounded_by_requests(num_open: int, is_taken: bool) -> None:
    refused = refuse(submit_of(), replace(IDLE, num_open=num_open), LIMITS)
    assert (refused is None) == is_taken


@pytest.mark.parametrize(("waiting", "is_taken"), [(960, True), (961, False)])
def test_the_line_is_bounded_by_tokens_of_all_choices(waiting: int, is_taken: bool) -> None:
    submit = submit_of(num_prompt=20, n=2)
    assert num_tokens(submit) == 40
    refused = refuse(submit, replace(IDLE, waiting_tokens=waiting), LIMITS)
    assert (refused is None) == is_taken


def test_a_request_longer_than_the_line_comes_in_when_nobody_waits() -> None:
    assert refuse(submit_of(5000), IDLE, LIMITS) is None
    assert refuse(submit_of(5000), replace(IDLE, waiting_tokens=1), LIMITS) is not None


def test_a_deadline_that_would_pass_in_line() -> None:
    load = replace(IDLE, wait_seconds=12.0)
    assert refuse(submit_of(deadline=13), load, LIMITS) is None
    assert refuse(submit_of(deadline=11), load, LIMITS) is not None
    assert refuse(submit_of(), load, LIMITS) is None


@pytest.mark.parametrize(("wait", "retry"), [(0.0, 2), (2.4, 3), (1e6, MAX_RETRY_SECONDS)], ids=str)
def test_the_wait_is_told(wait: float, retry: int) -> None:
    refused = refuse(submit_of(), replace(IDLE, num_open=10, wait_seconds=wait), LIMITS)
    assert refused is not None
    assert (refused.status, refused.retry_seconds) == (429, retry)
    assert f"{wait:.1f} s" in refused.message


def test_what_the_bus_refuses() -> None:
    assert refused_by_bus(FullError("x")).code == "no_memory"
    assert refused_by_bus(UnavailableError("x")).code == "unavailable"
    assert refused_by_bus(UnavailableError("secret")).status == 503
    assert "secret" not in refused_by_bus(UnavailableError("secret")).message


# Health


class Watch:
    """Shows a `Progress` one state after the other."""

    def __init__(self) -> None:
        self.progress = Progress(now=0.0)
        self.status = Status(epoch=1, beat=1)
        self.workers: dict[WorkerId, WorkerHello] = {}

    def see(self, now: float, num_open: int = 0, **changes: int) -> None:
        self.status = replace(self.status, **changes)
        self.progress.see(self.status, self.workers, num_open, now)

    def is_healthy(self, now: float) -> bool:
        return self.progress.health(30.0, now).ok


def test_what_stands_in_the_status_is_no_life() -> None:
    watch = Watch()
    watch.see(1.0, beat=7)
    watch.see(2.0)
    assert not watch.progress.has_leader(2.0)
    watch.see(3.0, beat=8)
    assert watch.progress.has_leader(3.0)
    assert watch.progress.has_leader(3.0 + LEADER_SECONDS - 0.1)
    assert not watch.progress.has_leader(3.0 + LEADER_SECONDS)


def test_a_new_leader_counts_from_anew() -> None:
    watch = Watch()
    watch.see(1.0, beat=7)
    watch.see(2.0, epoch=2, beat=7)
    assert watch.progress.has_leader(2.0)


class BeatingBus(MemoryBus):
    """Of a pool whose leader shows life whenever somebody looks, if it has one."""

    def __init__(self, *, has_leader: bool) -> None:
        super().__init__(MemoryServer())
        self.has_leader = has_leader
        self.looks = itertools.count(1)

    async def status(self) -> Status:
        return Status(epoch=1, beat=next(self.looks) if self.has_leader else 7)


@pytest.mark.parametrize("has_leader", [True, False])
async def test_a_new_gateway_looks_whether_somebody_leads_before_it_refuses(
    monkeypatch: pytest.MonkeyPatch, has_leader: bool
) -> None:
    monkeypatch.setattr(health, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(health, "FIRST_LOOK_SECONDS", 60.0 if has_leader else 0.1)
    monitor = Monitor(BeatingBus(has_leader=has_leader), GatewayId("g"), GatewayMetrics("m"))
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(10.0):
        running = tasks.create_task(monitor.run())
        await monitor.look_first()
        assert monitor.load().has_leader is has_leader
        running.cancel()


def test_idle_is_healthy() -> None:
    watch = Watch()
    for second in range(100):
        watch.see(float(second), beat=second)
        assert watch.is_healthy(float(second))


def test_busy_is_healthy() -> None:
    watch = Watch()
    for second in range(0, 200, 20):  # a step takes 20 s
        watch.see(float(second), num_open=100, beat=second, steps=second)
        assert watch.is_healthy(second + 19.0)


def test_beats_without_steps_are_not_healthy() -> None:
    watch = Watch()
    watch.see(0.0)
    for second in range(1, 60):
        watch.see(float(second), num_open=1, beat=second)
        assert watch.is_healthy(float(second)) == (second < 30)


def test_only_held_requests_are_healthy() -> None:
    """Nothing could go on; as soon as something can, it must."""
    watch = Watch()
    for second in range(100):
        watch.see(float(second), num_open=2, beat=second, num_waiting=2, num_held=2)
        assert watch.is_healthy(float(second))
    for second in range(100, 160):  # one is released
        watch.see(float(second), num_open=2, beat=second, num_held=1)
        assert watch.is_healthy(float(second)) == (second < 129)


@pytest.mark.parametrize(
    "counts",
    [
        {"num_running": 1, "num_waiting": 2, "num_held": 2},
        {"num_waiting": 0, "num_held": 0},  # no scheduler takes in what is open
    ],
    ids=["one-runs", "none-known"],
)
def test_held_requests_excuse_nobody_else(counts: dict[str, int]) -> None:
    watch = Watch()
    for second in range(32):
        watch.see(float(second), num_open=3, beat=second, **counts)
    assert not watch.is_healthy(32.0)


def test_no_beats_are_not_healthy() -> None:
    watch = Watch()
    watch.see(0.0)
    watch.see(1.0, beat=2)
    assert watch.is_healthy(30.9)
    assert not watch.is_healthy(31.0)


def test_a_start_is_given_time() -> None:
    progress = Progress(now=0.0)
    assert progress.health(30.0, 29.0).ok
    assert not progress.health(30.0, 30.0).ok


def test_ready_needs_a_leader_and_a_worker() -> None:
    watch = Watch()
    assert not watch.progress.readiness(0.0).ok
    watch.see(0.0)
    watch.see(1.0, beat=2)
    assert not watch.progress.readiness(1.0).ok
    hello = WorkerHello(WorkerId("w"), "m", "cpu", 8, 16, 128, 64, 8)
    watch.workers[hello.worker_id] = hello
    watch.see(1.0)
    assert watch.progress.readiness(1.0).ok


def test_the_largest_request_that_fits() -> None:
    watch = Watch()
    assert watch.progress.max_request_tokens(8192) == 8192
    hello = WorkerHello(WorkerId("w"), "m", "cpu", 8, 16, 128, 64, 8)
    watch.workers = {WorkerId("w"): hello, WorkerId("x"): replace(hello, max_request_tokens=256)}
    watch.see(0.0)
    assert watch.progress.max_request_tokens(8192) == 256
    assert watch.progress.max_request_tokens(100) == 100
    watch.workers = {}  # all are being started again
    watch.see(1.0)
    assert watch.progress.max_request_tokens(8192) == 256
    watch.workers = {WorkerId("w"): hello}
    watch.see(2.0)
    assert watch.progress.max_request_tokens(8192) == 128


class SlowBus(MemoryBus):
    """Does not answer before it may."""

    may_answer: asyncio.Event

    async def num_open(self) -> int:
        await self.may_answer.wait()
        return await super().num_open()


async def test_what_comes_during_a_poll_is_counted() -> None:
    bus = SlowBus(MemoryServer())
    bus.may_answer = asyncio.Event()
    monitor = Monitor(bus, GatewayId("g"), GatewayMetrics("m"))
    monitor.add(5)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(monitor.poll())
        for _ in range(10):
            await asyncio.sleep(0)
            assert monitor.load().num_open == 1
        monitor.add(7)
        bus.may_answer.set()
    assert (monitor.load().num_open, monitor.load().waiting_tokens) == (1, 7)
    await monitor.poll()
    assert (monitor.load().num_open, monitor.load().waiting_tokens) == (0, 0)


async def test_what_the_scheduler_says_of_the_pool_is_told_as_it_is() -> None:
    server = MemoryServer()
    status = Status(wait_seconds=1.5, cost_error=0.25, num_preempted=7, cached_tokens=640)
    server.hash("status")[STATUS_FIELD.encode()] = status_value(status)
    metrics = GatewayMetrics("m")
    monitor = Monitor(MemoryBus(server), GatewayId("g"), metrics)
    await monitor.poll()
    text = metrics.exposition().decode()
    for name, value in (
        ("predicted_wait_seconds", 1.5),
        ("step_prediction_error", 0.25),
        ("preemptions", 7.0),
        ("cached_tokens", 640.0),
    ):
        assert f'chairlift_{name}{{model_name="m"}} {value}' in text
    assert monitor.load().wait_seconds == 1.5
