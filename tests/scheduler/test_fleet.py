"""Workers are judged by their counters and our clock; requests go to the least loaded."""

from dataclasses import replace

import pytest

from common.messages import Ending, GatewayId, Sampling, SubmissionId, Submit, WorkerHello, WorkerId
from scheduler.core.request import Request
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.fleet import Fleet

HELLO = WorkerHello(WorkerId("w"), "m", "cpu", 64, 16, 512, 128, 8)


def build_core(hello: WorkerHello) -> Scheduler:
    limits = Limits(hello.max_step_tokens, hello.max_rows, 1, hello.max_request_tokens)
    return Scheduler(limits, Memory(hello.num_blocks, hello.block_size))


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(build_core, beat_seconds=2.0, step_seconds=10.0)


def hello(name: str = "w", **changes: object) -> dict[WorkerId, WorkerHello]:
    return {WorkerId(name): replace(HELLO, worker_id=WorkerId(name), **changes)}  # type: ignore[arg-type]


def request(name: str, prompt: int = 8) -> Request:
    submit = Submit(
        SubmissionId(name),
        (tuple(range(prompt)),),
        1,
        Sampling(seed=0),
        Ending(max_tokens=8),
        GatewayId("g"),
    )
    return Request.from_submit(submit, 0, 0)


def test_a_beat_that_moves_keeps_a_worker(fleet: Fleet) -> None:
    for second in range(10):
        assert not fleet.watch(hello(beat=second), now=float(second))


def test_a_beat_that_stands_still_loses_it(fleet: Fleet) -> None:
    fleet.watch(hello(beat=1), now=0.0)
    assert not fleet.watch(hello(beat=1), now=2.0)
    [(name, why)] = fleet.watch(hello(beat=1), now=2.1)
    assert (name, why) == ("w", "its beat stands still")


def test_a_step_without_end_loses_it(fleet: Fleet) -> None:
    for second in range(11):
        assert not fleet.watch(hello(beat=second, step=5), now=float(second))
    assert fleet.watch(hello(beat=11, step=5), now=11.0)


def test_no_step_may_last_for_ever(fleet: Fleet) -> None:
    for second in range(30):
        assert not fleet.watch(hello(beat=second, step=0), now=float(second))


@pytest.mark.parametrize("seen", [{}, hello(leaving=True, beat=2)], ids=["gone", "leaving"])
def test_who_goes_is_lost_at_once(fleet: Fleet, seen: dict[WorkerId, WorkerHello]) -> None:
    fleet.watch(hello(), now=0.0)
    assert fleet.watch(seen, now=0.1)


def test_one_that_is_seen_leaving_first_is_lost_too(fleet: Fleet) -> None:
    assert fleet.watch(hello(leaving=True), now=0.0)  # its field must be removed by somebody


def join(fleet: Fleet, hellos: dict[WorkerId, WorkerHello]) -> None:
    fleet.watch(hellos, now=0.0)
    for worker_id in fleet.unopened():
        fleet.open(worker_id)


def test_without_a_log_it_gets_nothing(fleet: Fleet) -> None:
    """An owner cannot be written then, and tokens without an owner would be lost."""
    fleet.watch(hello(), now=0.0)
    assert fleet.assign(request("r")) is None
    assert not fleet.logs()
    fleet.open(WorkerId("w"))
    assert [fleet.assign(r) for r in fleet.take_unassigned()] == ["w"]
    assert fleet.logs() == {"w": 0}


def test_requests_are_spread(fleet: Fleet) -> None:
    join(fleet, hello("a") | hello("b"))
    assigned = [fleet.assign(request(f"r{i}")) for i in range(6)]
    assert sorted(assigned) == ["a"] * 3 + ["b"] * 3  # type: ignore[type-var]


def test_a_request_goes_where_it_fits(fleet: Fleet) -> None:
    join(fleet, hello("small", num_blocks=1) | hello("large"))
    assert {fleet.assign(request(f"r{i}", prompt=100)) for i in range(4)} == {"large"}
    assert fleet.never_fits(request("r", prompt=100)) is None
    assert "512" in (fleet.never_fits(request("r", prompt=1000)) or "")


def test_a_request_waits_for_a_worker_that_is_joining(fleet: Fleet) -> None:
    join(fleet, hello("small", num_blocks=1))
    large = request("r", prompt=100)
    assert fleet.never_fits(large)
    fleet.watch(hello("small", num_blocks=1) | hello("large"), now=0.0)
    assert fleet.never_fits(large) is None
    assert fleet.assign(large) is None
    fleet.open(WorkerId("large"))
    assert [fleet.assign(r) for r in fleet.take_unassigned()] == ["large"]


def test_without_workers_requests_wait_in_order(fleet: Fleet) -> None:
    for i in range(3):
        assert fleet.assign(request(f"r{i}")) is None
    assert fleet.never_fits(request("r")) is None
    assert [r.id for r in fleet.take_unassigned()] == ["r0.0", "r1.0", "r2.0"]
    assert not fleet.unassigned


def test_a_buried_worker_gives_its_requests_back(fleet: Fleet) -> None:
    join(fleet, hello())
    fleet.assign(request("r"))
    fleet.workers[WorkerId("w")].core.schedule()
    assert [r.id for r in fleet.bury(WorkerId("w"))] == ["r.0"]
    assert not fleet.workers
