"""Suspects run alone, and nobody waits for one that does not run."""

from dataclasses import replace

import pytest

from common.bus import Log, News, Outcome, WritePlan
from common.messages import (
    Control,
    ControlKind,
    Ending,
    GatewayId,
    RequestId,
    Sampling,
    StepPlan,
    SubmissionId,
    Submit,
    WorkerHello,
    WorkerId,
)
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.fleet import Fleet
from scheduler.leader import Leader
from scheduler.ledger import Ledger

HELLO = WorkerHello(WorkerId("w"), "m", "cpu", 64, 16, 512, 128, 8)
SUSPECT, OTHER = RequestId("s0.0"), RequestId("s1.0")


def build_core(hello: WorkerHello) -> Scheduler:
    limits = Limits(hello.max_step_tokens, hello.max_rows, 1, hello.max_request_tokens)
    return Scheduler(limits, Memory(hello.num_blocks, hello.block_size))


class Life:
    """A leader whose workers do nothing but join and die."""

    def __init__(self) -> None:
        fleet = Fleet(build_core, beat_seconds=2.0, step_seconds=10.0)
        self.leader = Leader(fleet, Ledger(journal_seconds=60), max_queue=100)
        self.entries = 0

    def submit(self, name: str) -> None:
        submit = Submit(
            SubmissionId(name),
            ((1, 2, 3),),
            1,
            Sampling(seed=1),
            Ending(max_tokens=100),
            GatewayId("g"),
            tenant="bad" if name == "s0" else "good",
        )
        self.entries += 1
        self.leader.receive(News(submits=((f"{self.entries}-0", submit),)), 0.0)
        self.leader.joined([Outcome.OK] * len(self.leader.heads()), 0.0)

    def control(self, kind: ControlKind, target: str) -> None:
        self.entries += 1
        control = (f"{self.entries}-0", Control(kind, target))
        self.leader.receive(News(controls=(control,)), 0.0)

    def join(self, *names: str) -> None:
        fleet = self.leader.fleet
        for name in names:
            fleet.watch({WorkerId(name): replace(HELLO, worker_id=WorkerId(name))}, now=0.0)
            fleet.open(WorkerId(name))
        self.leader.watched()

    def plans(self) -> dict[WorkerId, StepPlan]:
        """The last plan for each worker of all that follow now."""
        writes = self.leader.act(0.0)
        return {write.worker: write.plan for write in writes if isinstance(write, WritePlan)}

    def members(self) -> list[RequestId]:
        """Who takes part in the steps planned now; nobody computes them."""
        return [chunk.request_id for plan in self.plans().values() for chunk in plan.chunks]

    def die(self, name: str) -> None:
        self.leader.bury(WorkerId(name), Log(), died=True, now=0.0)


@pytest.fixture
def life() -> Life:
    """With one suspect in line, and no worker."""
    life = Life()
    life.submit("s0")
    for name in ("a", "b"):
        life.join(name)
        assert life.members()
        life.die(name)
    assert list(life.leader.quarantine.line) == [SUSPECT]
    life.submit("s1")
    return life


def test_a_suspect_runs_alone(life: Life) -> None:
    life.join("c")
    assert set(life.members()) == {SUSPECT}


def test_a_suspect_that_is_held_stops_nobody(life: Life) -> None:
    life.control(ControlKind.HOLD, SUSPECT)
    life.join("c")
    assert set(life.members()) == {OTHER}


def test_a_suspect_that_is_held_while_it_runs_stops_nobody(life: Life) -> None:
    life.join("c")
    life.leader.act(0.0)
    life.control(ControlKind.HOLD, SUSPECT)
    life.leader.act(0.0)
    [worker] = life.leader.fleet.workers.values()
    assert worker.suspect is None
    request = life.leader.ledger.accounts[OTHER].request
    assert not request.held


def test_who_is_held_stays_so_when_the_suspect_has_passed(life: Life) -> None:
    life.join("c")
    life.leader.act(0.0)
    life.control(ControlKind.HOLD, OTHER)
    life.control(ControlKind.CANCEL, SUSPECT)
    life.die("c")
    life.join("d")
    assert not life.members()
    life.control(ControlKind.RELEASE, OTHER)
    assert life.members() == [OTHER]


def test_the_loss_of_another_worker_changes_nothing(life: Life) -> None:
    life.join("c")
    life.leader.act(0.0)
    life.leader.fleet.watch({}, now=0.0)
    life.join("d")
    life.die("d")
    assert life.leader.fleet.workers[WorkerId("c")].suspect == SUSPECT
    assert life.leader.ledger.accounts[OTHER].request.held


def test_one_that_is_alone_at_a_death_is_condemned(life: Life) -> None:
    life.join("c")
    assert set(life.members()) == {SUSPECT}
    life.die("c")
    assert SUSPECT not in life.leader.ledger.accounts
    life.join("d")
    assert life.members()
    assert not life.leader.ledger.accounts[OTHER].deaths


def test_a_suspect_of_a_drained_tenant_stops_nobody(life: Life) -> None:
    life.control(ControlKind.DRAIN, "tenant:bad")
    life.join("c")
    assert set(life.members()) == {OTHER}
    life.control(ControlKind.RELEASE, "tenant:bad")
    life.join("d")
    assert SUSPECT in life.members()
    assert SUSPECT in {worker.suspect for worker in life.leader.fleet.workers.values()}


def test_a_suspect_that_ran_before_its_tenant_was_drained_goes_on(life: Life) -> None:
    life.join("c")
    life.leader.quarantine.isolate()  # it has the worker, and no row yet
    life.control(ControlKind.DRAIN, "tenant:bad")
    assert set(life.members()) == {SUSPECT}


def test_a_suspect_has_no_worker_that_is_draining(life: Life) -> None:
    life.join("c")
    life.control(ControlKind.DRAIN, "worker:c")
    assert not life.members()
    life.join("d")
    assert set(life.members()) == {SUSPECT}
    assert life.leader.fleet.workers[WorkerId("d")].suspect == SUSPECT
