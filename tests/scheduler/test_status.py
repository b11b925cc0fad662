"""What `status` counts, wherever a request is."""

from dataclasses import replace

import pytest

from common.bus import Log, News, Outcome, Status
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
from scheduler.status import Progress, summary

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
