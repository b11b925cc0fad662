"""Whoever leads next reads the entries that stay, and must come to the same."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from common.bus import DropControl, DropSubmit
from common.messages import (
    Control,
    ControlKind,
    Ending,
    FinishReason,
    GatewayId,
    Sampling,
    SubmissionId,
    Submit,
    WorkerHello,
    WorkerId,
)
from scheduler.asked import Asked
from scheduler.controls import Controls
from scheduler.core.request import Request
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.core.shares import Shares
from scheduler.fleet import Fleet
from scheduler.ledger import Account, Ledger
from scheduler.pool_controls import PoolControls

HOLD, RELEASE, PRIORITY = ControlKind.HOLD, ControlKind.RELEASE, ControlKind.PRIORITY
ATTACH, DETACH, CANCEL = ControlKind.ATTACH, ControlKind.DETACH, ControlKind.CANCEL
DRAIN, WEIGHT = ControlKind.DRAIN, ControlKind.WEIGHT
SUBMIT = Submit(
    SubmissionId("s"),
    prompts=((1, 2, 3),),
    n=2,
    sampling=Sampling(seed=1),
    ending=Ending(max_tokens=100),
    gateway=GatewayId("own"),
    tenant="alice",
)
LATER = replace(SUBMIT, submission_id=SubmissionId("t"), n=1)
BOB = replace(SUBMIT, submission_id=SubmissionId("b"), n=1, tenant="bob")
HELLO = WorkerHello(WorkerId("w"), "m", "cpu", 64, 16, 512, 128, 8)
TARGETS = ("s", "s.0", "s.1")
ALICE, WORKER = "tenant:alice", "worker:w"
Event = Submit | Control


def build_core(hello: WorkerHello) -> Scheduler:
    return Scheduler(Limits(128, 8, 1, 512), Memory(hello.num_blocks, hello.block_size))


class Life:
    """One leader's view of requests that no worker has yet, and of a worker."""

    def __init__(
        self, *, has_worker: bool = True, weights: Mapping[str, float] | None = None
    ) -> None:
        self.ledger = Ledger(journal_seconds=60)
        self.fleet = Fleet(build_core, 2.0, 10.0)
        self.shares = Shares(weights=weights)
        pool_controls = PoolControls(self.fleet, self.shares)
        self.controls = Controls(self.ledger, self.end, lambda _: None, pool_controls)
        self.asked = Asked(self.ledger, self.controls, pool_controls)
        self.ledger.on_ended = self.controls.forget
        self.dropped: list[str] = []
        self.arrivals = itertools.count(1)
        if has_worker:
            self.join()

    def join(self) -> None:
        self.fleet.watch({HELLO.worker_id: HELLO}, now=0.0)
        self.fleet.open(HELLO.worker_id)

    def end(self, account: Account, reason: FinishReason, kept: int | None) -> None:
        account.request.finish_reason, account.request.kept = reason, kept or 0
        self.drop(self.ledger.end(account))

    def drop(self, writes: Sequence[Any]) -> None:
        self.dropped += [
            write.entry for write in writes if isinstance(write, DropControl | DropSubmit)
        ]

    def read(self, stream: dict[str, Event]) -> dict[str, Any]:
        """All entries, submissions first; those that need not stay are dropped from the stream."""
        self.sweep(stream)
        for entry, event in stream.items():
            if isinstance(event, Submit) and event.submission_id not in self.ledger.submissions:
                choices = range(event.num_choices)
                requests = [Request.from_submit(event, c, next(self.arrivals)) for c in choices]
                self.ledger.open(entry, event, requests)
        for entry, event in list(stream.items()):
            if isinstance(event, Control):
                self.drop(self.controls.take(entry, event))
        self.sweep(stream)
        return self.state()

    def sweep(self, stream: dict[str, Event]) -> None:
        for entry in self.dropped:
            stream.pop(entry, None)

    def state(self) -> dict[str, Any]:
        requests = [account.request for account in self.ledger.accounts.values()]
        return {
            **{r.id: (r.held, r.priority, {*r.gateways}, r.finish_reason) for r in requests},
            "drained": set(self.fleet.drained_tenants),
            "draining": [worker.is_draining for worker in self.fleet.workers.values()],
            "weights": dict(self.shares.weights),
        }


def check(*events: Event, first: Sequence[Submit] = (SUBMIT,)) -> dict[str, Event]:
    """The same for each leader that takes over. Returns the control entries that stay."""
    stream: dict[str, Event] = {f"0-{index}": submit for index, submit in enumerate(first)}
    has_worker = any(getattr(event, "target", "") == WORKER for event in events)
    life = Life(has_worker=has_worker)
    for index, event in enumerate(events, 1):
        stream[f"{index}-0"] = event
        state = life.read(stream)
        assert Life(has_worker=has_worker).read(dict(stream)) == state, events[:index]
    return {entry: event for entry, event in stream.items() if isinstance(event, Control)}


@pytest.mark.parametrize("length", [2, 4])
def test_a_new_leader_holds_what_the_old_one_held(length: int) -> None:
    asked = [Control(kind, target) for kind in (HOLD, RELEASE) for target in TARGETS]
    for controls in itertools.product(asked, repeat=length):
        check(*controls)


@pytest.mark.parametrize("length", [2, 4])
def test_a_new_leader_shows_it_to_the_same_gateways(length: int) -> None:
    gateways = (GatewayId("own"), GatewayId("other"))
    asked = [
        Control(kind, target, gateway=gateway)
        for kind in (ATTACH, DETACH)
        for target in TARGETS[:2]
        for gateway in gateways
    ]
    for controls in itertools.product(asked, repeat=length):
        check(*controls)


def test_the_newest_priority_counts() -> None:
    asked = [
        Control(PRIORITY, target, priority=priority) for target in TARGETS for priority in (1, 2)
    ]
    for controls in itertools.product(asked, repeat=3):
        check(*controls)


def test_what_is_undone_leaves_with_what_undoes_it() -> None:
    other = GatewayId("other")
    assert not check(Control(HOLD, "s"), Control(RELEASE, "s"))
    assert not check(Control(ATTACH, "s", gateway=other), Control(DETACH, "s", gateway=other))
    own = (
        Control(DETACH, "s", gateway=GatewayId("own")),
        Control(ATTACH, "s", gateway=GatewayId("own")),
    )
    assert len(check(*own * 3)) == 1  # a client that comes and goes leaves one entry
    assert len(check(*own * 3, own[0])) == 1
    assert len(check(Control(PRIORITY, "s", priority=1), Control(PRIORITY, "s", priority=2))) == 1
    assert len(check(Control(PRIORITY, "s", priority=1), Control(RELEASE, "s"))) == 1
    assert not check(Control(HOLD, ALICE), Control(RELEASE, ALICE), first=(SUBMIT, BOB, LATER))
    assert not check(Control(DRAIN, ALICE), Control(RELEASE, ALICE))
    assert not check(Control(DRAIN, WORKER), Control(RELEASE, WORKER))
    assert len(check(Control(WEIGHT, ALICE, weight=3), Control(WEIGHT, ALICE, weight=2))) == 1
    assert len(check(Control(DRAIN, ALICE), Control(DRAIN, ALICE))) == 1


def test_a_new_leader_knows_what_was_asked_of_tenants() -> None:
    """Also of requests that come between, and of some that one asked for apart."""
    asked: list[Event] = [Control(kind, t) for kind in (HOLD, RELEASE) for t in (ALICE, "s.0")]
    asked += [Control(PRIORITY, ALICE, priority=3), Control(DRAIN, ALICE), LATER]
    for events in itertools.product(asked, repeat=3):
        if events.count(LATER) <= 1:
            check(*events, first=(SUBMIT, BOB))


def test_a_tenant_means_its_open_requests_and_nobody_elses() -> None:
    life = Life()
    stream: dict[str, Event] = {"1-0": SUBMIT, "2-0": BOB, "3-0": Control(CANCEL, ALICE)}
    life.read(stream)
    assert [account.request.id for account in life.ledger.accounts.values()] == ["b.0"]
    assert list(stream) == ["2-0"]  # the cancel went with the last end
    stream["4-0"] = LATER
    life.read(stream)
    assert not life.ledger.accounts["t.0"].is_done  # type: ignore[index]


def test_a_cancel_that_is_read_again_spares_who_came_later() -> None:
    """The leader died before all ends were written."""
    stream: dict[str, Event] = {"1-0": SUBMIT, "2-0": Control(CANCEL, ALICE), "3-0": LATER}
    life = Life()
    life.read(stream)
    assert list(life.ledger.accounts) == ["t.0"]


def test_a_cancel_of_a_tenant_stays_until_all_its_ends_are_written() -> None:
    life = Life()
    ended: list[Account] = []
    life.controls._end = lambda account, *_: ended.append(account)  # a step names them still
    stream: dict[str, Event] = {"1-0": SUBMIT, "2-0": LATER, "3-0": Control(CANCEL, ALICE)}
    life.read(stream)
    for account in ended:
        assert "3-0" in stream
        life.end(account, FinishReason.CANCELLED, None)
        life.read(stream)
    assert len(ended) == 3
    assert "3-0" not in stream


def test_a_weight_stays_until_it_is_what_settings_say() -> None:
    life = Life(weights={"bob": 5.0})
    for tenant, other, own in (("alice", 2.0, 1.0), ("bob", 1.0, 5.0)):
        target = f"tenant:{tenant}"
        stream: dict[str, Event] = {"1-0": Control(WEIGHT, target, weight=other)}
        life.read(stream)
        assert list(stream) == ["1-0"]
        stream["2-0"] = Control(WEIGHT, target, weight=own)
        assert life.read(stream)["weights"][tenant] == own
        assert not stream
        life.dropped.clear()


def test_drains_and_weights_outlast_requests() -> None:
    assert len(check(Control(DRAIN, "tenant:nobody"), Control(WEIGHT, "tenant:x", weight=3))) == 2
    assert len(check(Control(DRAIN, ALICE), Control(CANCEL, ALICE))) == 1


def test_a_lost_workers_drain_goes_with_it() -> None:
    life, stream = Life(), {"1-0": Control(DRAIN, WORKER), "2-0": Control(DRAIN, ALICE)}
    life.read(stream)  # type: ignore[arg-type]
    assert life.controls.bury(WorkerId("w")) == [DropControl("1-0")]
    assert life.controls.bury(WorkerId("w")) == []


@pytest.mark.parametrize(
    "control",
    [
        Control(CANCEL, "nobody"),
        Control(CANCEL, "tenant:nobody"),
        Control(HOLD, WORKER),
        Control(RELEASE, WORKER),
        Control(RELEASE, ALICE + "s"),
        Control(DRAIN, "s.0"),
        Control(DRAIN, "tenant:"),
        Control(DRAIN, "worker:nobody"),
        Control(WEIGHT, WORKER, weight=2.0),
        Control(WEIGHT, "s", weight=2.0),
    ],
)
def test_what_means_nobody_is_dropped_and_told(control: Control) -> None:
    life, stream = Life(), {"1-0": SUBMIT, "2-0": control}
    before = life.read({"1-0": SUBMIT})
    assert life.read(stream) == before  # type: ignore[arg-type]
    assert list(stream) == ["1-0"]
    assert life.controls.take_unheeded() == [("2-0", control)]
    assert life.controls.take_unheeded() == []


@pytest.mark.parametrize("control", [Control(RELEASE, "s"), Control(DETACH, "s.1")])
def test_what_changes_nothing_of_what_is_open_is_no_mistake(control: Control) -> None:
    life = Life()
    life.read({"1-0": SUBMIT, "2-0": control})
    assert not life.controls.take_unheeded()


def test_a_worker_that_is_only_just_joining_is_waited_for() -> None:
    life = Life(has_worker=False)
    life.asked.add([("1-0", Control(DRAIN, WORKER)), ("2-0", Control(DRAIN, "worker:x"))])
    assert not life.asked.do(is_behind=False)
    life.join()
    assert life.asked.do(is_behind=False, is_watched=True) == [DropControl("2-0")]
    assert life.fleet.workers[WorkerId("w")].is_draining


def test_what_follows_a_tenants_control_waits_with_it() -> None:
    """While its submissions are read still: the later one counts."""
    life = Life()
    life.read({"1-0": SUBMIT})
    life.asked.add([("3-0", Control(HOLD, ALICE)), ("4-0", Control(RELEASE, "s"))])
    life.asked.do(is_behind=True)
    assert len(life.asked) == 2
    life.read({"2-0": LATER})
    life.asked.do(is_behind=False)
    held = {
        request.id: request.held for request in (a.request for a in life.ledger.accounts.values())
    }
    assert held == {"s.0": False, "s.1": False, "t.0": True}
