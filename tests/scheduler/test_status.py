"""What `status` counts, wherever a request is."""

from dataclasses import replace

import orjson
import pytest

from common.bus import Log, News, Outcome, SetStatus, Status
from common.messages import (
    Control,
    ControlKind,
    Ending,
    GatewayId,
    RequestId,
    Sampling,
    SubmissionId,
    Submit,
    WorkerHello,
    WorkerId,
)
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.fleet import Fleet
from scheduler.leader import Leader
from scheduler.ledger import Ledger
from scheduler.status import RATE_SECONDS, Progress, status_writes, summary
from tests.scheduler.pool import Pool as DrivenPool

HELLO = WorkerHello(WorkerId("w"), "m", "cpu", 64, 16, 512, 128, max_rows=1)
PROMPT = (1, 2, 3)


def build_core(hello: WorkerHello) -> Scheduler:
    limits = Limits(hello.max_step_tokens, hello.max_rows, 1, hello.max_request_tokens)
    return Scheduler(limits, Memory(hello.num_blocks, hello.block_size))


class Pool:
    """A leader, and workers that have one seat and compute nothing."""

    def __init__(self) -> None:
        fleet = Fleet(build_core, beat_seconds=2.0, step_seconds=10.0)
        self.leader = Leader(fleet, Ledger(journal_seconds=60), max_queue=100)
        self.entries = 0

    def submit(self, name: str, n: int = 1) -> None:
        submit = Submit(SubmissionId(name), (PROMPT,), n, Sampling(1), Ending(100), GatewayId("g"))
        self.entries += 1
        self.leader.receive(News(submits=((f"{self.entries}-0", submit),)), 0.0)
        self.leader.joined([Outcome.OK] * len(self.leader.heads()), 0.0)

    def control(self, kind: ControlKind, target: str) -> None:
        self.entries += 1
        self.leader.receive(News(controls=((f"{self.entries}-0", Control(kind, target)),)), 0.0)

    def join(self, name: str) -> None:
        fleet = self.leader.fleet
        fleet.watch({WorkerId(name): replace(HELLO, worker_id=WorkerId(name))}, now=0.0)
        fleet.open(WorkerId(name))
        self.leader.watched()
        self.leader.act(0.0)

    def status(self) -> Status:
        leader = self.leader
        progress = Progress(1, 1, 1, tokens_per_second=0.0, ends_per_second=0.0)
        return summary(leader.fleet, leader.ledger, leader.quarantine, progress)


@pytest.fixture
def pool() -> Pool:
    return Pool()


def counts(status: Status) -> tuple[int, int, int]:
    return status.num_waiting, status.num_held, status.num_running


def test_held_requests_wait_and_are_told_apart(pool: Pool) -> None:
    for name in ("a", "b", "c"):
        pool.submit(name)
    pool.control(ControlKind.HOLD, "c")
    assert counts(pool.status()) == (3, 1, 0)  # nobody has a worker yet
    assert pool.status().waiting_tokens == 2 * len(PROMPT)
    pool.join("w")
    assert counts(pool.status()) == (2, 1, 1)
    pool.control(ControlKind.HOLD, "a")  # it runs, and gives up its row
    pool.control(ControlKind.HOLD, "b")
    assert counts(pool.status()) == (3, 3, 0)
    assert pool.status().wait_seconds == 0
    pool.control(ControlKind.CANCEL, "c")
    pool.leader.act(0.0)
    assert counts(pool.status()) == (2, 2, 0)


def test_a_choice_that_has_ended_is_held_no_more(pool: Pool) -> None:
    pool.submit("a", n=2)
    pool.control(ControlKind.HOLD, "a.0")
    pool.control(ControlKind.CANCEL, "a.0")
    pool.leader.act(0.0)
    assert counts(pool.status()) == (1, 0, 0)


def test_suspects_wait_too(pool: Pool) -> None:
    pool.submit("s")
    for name in ("v", "w"):
        pool.join(name)
        pool.leader.bury(WorkerId(name), Log(), died=True, now=0.0)
    assert list(pool.leader.quarantine.line) == [RequestId("s.0")]
    assert counts(pool.status()) == (1, 0, 0)
    assert pool.status().waiting_tokens == len(PROMPT)
    pool.control(ControlKind.HOLD, "s")
    assert counts(pool.status()) == (1, 1, 0)


def test_drained_requests_go_on_only_when_somebody_says_so(pool: Pool) -> None:
    for name in ("a", "b"):
        pool.submit(name)
    pool.join("w")
    pool.control(ControlKind.DRAIN, "tenant:anonymous")
    assert counts(pool.status()) == (1, 1, 1)  # what runs is not held by it
    pool.control(ControlKind.RELEASE, "tenant:anonymous")
    assert counts(pool.status()) == (1, 0, 1)


def test_the_wait_is_that_of_the_worker_where_it_is_shortest(pool: Pool) -> None:
    for name in ("v", "w"):
        pool.join(name)
    cores = [worker.core for worker in pool.leader.fleet.workers.values()]
    for core, wait in zip(cores, (7.0, 3.0), strict=True):
        core.predicted_wait = lambda wait=wait: wait  # type: ignore[method-assign, misc]
        core.cost.error = wait / 100
    assert pool.status().wait_seconds == 3.0
    assert pool.status().cost_error == 0.07
    pool.control(ControlKind.DRAIN, "worker:w")
    assert pool.status().wait_seconds == 7.0  # the other takes nobody
    pool.control(ControlKind.RELEASE, "worker:w")
    pool.leader.fleet.workers[WorkerId("w")].suspect = RequestId("r.0")
    assert pool.status().wait_seconds == 7.0


def test_without_workers_the_wait_is_what_ends_of_late_allow(pool: Pool) -> None:
    for name in ("a", "b", "c"):
        pool.submit(name)
    assert pool.status().wait_seconds == 3 * RATE_SECONDS


def test_rows_of_all_workers_are_listed_by_their_positions() -> None:
    pool = DrivenPool("a", "b", max_running=1, prefix_cache=False)
    for i in range(8):
        pool.submit(f"r{i}", max_tokens=30)
    pool.act()
    leader = pool.leader
    writes = status_writes(leader.fleet, leader.quarantine, leader.totals, Status())
    fields = {w.field: orjson.loads(w.value) for w in writes if isinstance(w, SetStatus)}
    assert [row["position"] for row in fields["waiting"]] == [0, 0, 1, 1, 2, 2]
    assert {row["worker"] for row in fields["waiting"][:2]} == {"a", "b"}
    assert len(fields["running"]) == 2
    assert fields["totals"]["prompt_tokens"] == 64


def test_held_ones_are_before_nobody() -> None:
    pool = DrivenPool("a", max_running=1)
    for i in range(4):
        pool.submit(f"r{i}", max_tokens=30)
    pool.act()
    pool.control(ControlKind.HOLD, "r1")
    leader = pool.leader
    writes = status_writes(leader.fleet, leader.quarantine, leader.totals, Status())
    fields = {w.field: orjson.loads(w.value) for w in writes if isinstance(w, SetStatus)}
    positions = {row["request"]: row["position"] for row in fields["waiting"]}
    assert positions == {"r1.0": 0, "r2.0": 0, "r3.0": 1}
