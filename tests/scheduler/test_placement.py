"""Who computes what: where requests go, how lines are evened out, how a worker is drained."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.messages import ControlKind, FinishReason, RequestId
from scheduler.balancing import MOVE_SECONDS
from scheduler.fleet import ROW_TOKENS
from tests.scheduler.pool import STEP_SECONDS, Pool

DRAIN, RELEASE = ControlKind.DRAIN, ControlKind.RELEASE
SHARED = tuple(range(500, 540))


def test_a_request_goes_where_the_least_is_to_be_done() -> None:
    pool = Pool("a", "b", max_step_tokens=16)
    long = pool.submit("long", prompt=60)
    assert pool.where(pool.submit("x", prompt=4)) != pool.where(long)


def test_a_request_goes_where_its_prefix_is() -> None:
    pool = Pool("a", "b")
    first = pool.submit("first", SHARED)
    home = pool.where(first)
    assert home
    pool.run()
    for i in range(3):  # the other is as idle, and was empty all the time
        again = pool.submit(f"again{i}", (*SHARED, 900 + i))
        assert pool.where(again) == home
        pool.run()
        assert pool.ended[again].cached_tokens == len(SHARED)


@pytest.mark.parametrize(("num_rows", "is_at_home"), [(1, True), (2, False)])
def test_a_prefix_is_worth_its_tokens(num_rows: int, is_at_home: bool) -> None:
    """40 of them; a row that decodes weighs 32."""
    assert ROW_TOKENS < len(SHARED) < 2 * ROW_TOKENS
    pool = Pool("a", "b")
    pool.control(DRAIN, "worker:b")
    pool.submit("first", SHARED, max_tokens=1)
    pool.run()
    for i in range(num_rows):
        pool.submit(f"other{i}", prompt=4, max_tokens=40)
    pool.turn()
    pool.turn()
    assert len(pool.running("a")) == num_rows
    pool.control(RELEASE, "worker:b")
    late = pool.submit("late", (*SHARED, 900))
    assert (pool.where(late) == "a") == is_at_home


def test_an_idle_worker_takes_from_a_line() -> None:
    pool = Pool("a", max_running=2)
    for i in range(6):
        pool.submit(f"r{i}", max_tokens=20)
    pool.act()
    assert len(pool.waiting("a")) == 4
    pool.join("b", max_rows=4)
    pool.turn()
    assert pool.running("b") == ["r2.0", "r3.0"]  # the first half of the line
    assert pool.waiting("a") == ["r4.0", "r5.0"]
    pool.run()
    pool.check_answers()
    assert pool.leader.totals.moved >= 2


def test_a_new_request_stays_for_the_plan_that_may_start_it() -> None:
    """Its worker has its prefix, and a seat; only its next step is not planned yet."""
    pool = Pool("a", "b", max_running=2)
    home = pool.where(pool.submit("first", SHARED, max_tokens=30))
    assert home
    for _ in range(6):
        pool.turn()
    again = pool.submit("again", SHARED)
    pool.act()
    assert pool.where(again) == home
    assert again in pool.waiting(home)
    pool.turn()
    assert again in pool.running(home)


def test_what_was_preempted_moves_with_its_tokens() -> None:
    """They are in the log of the old worker; the journal has them before the owner changes."""
    pool = Pool("a", num_blocks=12, max_running=4)
    for i in range(3):
        pool.submit(f"r{i}", prompt=8, max_tokens=30)
    while not any(entry["preempted"] for entry in pool.timeline):
        pool.turn()
    pool.join("b")
    for _ in range(3):
        pool.turn()
    assert pool.leader.totals.moved
    pool.run()
    pool.check_answers()


def test_two_workers_do_not_play_ball() -> None:
    """Neither has room for it: it waits where it is."""
    pool = Pool("a", "b", num_blocks=12, max_running=4)
    for i in range(2):
        pool.submit(f"r{i}", prompt=30, max_tokens=15)
    pool.act()
    pool.submit("big", prompt=30, max_tokens=15)
    for _ in range(int(MOVE_SECONDS / STEP_SECONDS) // 20):
        pool.turn()
    assert pool.leader.totals.moved <= 1


def test_a_drained_worker_ends_what_runs_and_gives_the_rest() -> None:
    pool = Pool("a", "b", max_running=1)
    for i in range(4):
        pool.submit(f"r{i}", max_tokens=20)
    pool.turn()
    [runs] = pool.running("a")
    pool.control(DRAIN, "worker:a")
    pool.turn()
    assert pool.worker("a").is_draining
    assert pool.running("a") == [runs]
    assert not pool.waiting("a")
    late = pool.submit("late")
    assert pool.where(late) == "b"
    while pool.running("a"):
        pool.turn()
    assert pool.journals[runs]
    before = pool.worker("a").cursor
    for _ in range(3):
        pool.turn()
    assert pool.worker("a").cursor <= before + 1  # it may hear of the last row's release
    pool.control(RELEASE, "worker:a")
    assert not pool.worker("a").is_draining
    pool.turn()
    assert pool.running("a")
    pool.run()
    pool.check_answers()


def test_with_all_workers_drained_requests_wait_for_one() -> None:
    pool = Pool("a", max_running=1)
    first, second = pool.submit("first", max_tokens=20), pool.submit("second")
    pool.act()
    pool.control(DRAIN, "worker:a")
    pool.turn()
    assert pool.where(second) is None
    pool.leader.watched()
    third = pool.submit("third")
    assert pool.where(third) is None
    pool.run()
    assert first in pool.ended
    pool.control(RELEASE, "worker:a")
    pool.leader.watched()
    pool.run()
    pool.check_answers()


def test_a_preempted_row_of_a_drained_worker_moves_once_its_tokens_are_here() -> None:
    pool = Pool("a", num_blocks=12, max_running=4)
    for i in range(3):
        pool.submit(f"r{i}", prompt=8, max_tokens=30)
    pool.act()
    pool.control(DRAIN, "worker:a")
    while not any(entry["preempted"] for entry in pool.timeline):
        pool.turn()
    pool.join("b")
    pool.run()
    pool.check_answers()
    assert pool.logs["b"]  # type: ignore[index]


def test_swapped_rows_end_where_their_memory_is() -> None:
    pool = Pool("a", num_blocks=12, max_running=4, num_host_blocks=32, preemption="swap")
    for i in range(3):
        pool.submit(f"r{i}", prompt=8, max_tokens=30)
    while not any(entry["preempted"] for entry in pool.timeline):
        pool.turn()
    [[swapped, how]] = pool.timeline[-1]["preempted"]
    assert how == "swap"
    pool.join("b")
    pool.control(DRAIN, "worker:a")
    pool.run()
    assert pool.owners[swapped] == "a"
    pool.check_answers()


SWAPPED_CONTROLS: list[tuple[ControlKind, dict[str, Any]]] = [
    (ControlKind.CANCEL, {}),
    (ControlKind.STOP, {"kept": 1}),
    (ControlKind.HOLD, {}),
    (ControlKind.PRIORITY, {"priority": 5}),
    (DRAIN, {}),
]


@pytest.mark.parametrize(("kind", "changes"), SWAPPED_CONTROLS)
def test_controls_reach_a_swapped_request(kind: ControlKind, changes: dict[str, Any]) -> None:
    pool = Pool("a", num_blocks=12, max_running=4, num_host_blocks=32, preemption="swap")
    for i in range(3):
        pool.submit(f"r{i}", prompt=8, max_tokens=30, tenant=f"t{i}")
    while not any(entry["preempted"] for entry in pool.timeline):
        pool.turn()
    [[swapped, _]] = pool.timeline[-1]["preempted"]
    request = pool.leader.ledger.accounts[swapped].request
    pool.control(kind, f"tenant:{request.tenant}" if kind is DRAIN else swapped, **changes)
    pool.run()
    core = pool.worker("a").core
    assert core.host.num_free == core.host.num_blocks
    match kind:
        case ControlKind.CANCEL:
            assert pool.ended[swapped].reason is FinishReason.CANCELLED
        case ControlKind.STOP:
            end = pool.ended[swapped]
            assert (end.reason, end.kept) == (FinishReason.STOP, 1)
        case ControlKind.PRIORITY:
            assert request.priority == 5
            pool.check_answers()
        case ControlKind.DRAIN:  # it ran: so it ends
            pool.check_answers()
        case _:
            assert swapped not in pool.ended
            pool.control(RELEASE, swapped)
            pool.run()
            pool.check_answers()


def test_a_drained_tenant_ends_what_runs_and_starts_nothing() -> None:
    pool = Pool("a", "b", max_running=1)
    runs = [pool.submit(f"r{i}", tenant="alice", max_tokens=12) for i in range(2)]
    waits = pool.submit("waits", tenant="alice")
    other = pool.submit("other", tenant="bob")
    pool.turn()
    pool.control(DRAIN, "tenant:alice")
    pool.join("c")
    comes = pool.submit("comes", tenant="alice")
    assert pool.where(comes) == "c"  # which knows of it, new as it is
    pool.run()
    assert pool.ended.keys() == {*runs, other}
    pool.control(RELEASE, "tenant:alice")
    pool.run()
    pool.check_answers()
    assert {waits, comes} <= pool.ended.keys()


def test_controls_of_a_tenant_reach_all_its_requests() -> None:
    pool = Pool("a", max_running=1)
    alices = [pool.submit(f"r{i}", tenant="alice") for i in range(3)]
    bobs = pool.submit("b", tenant="bob")
    pool.act()
    pool.control(ControlKind.HOLD, "tenant:alice")
    pool.run()
    assert pool.ended.keys() == {bobs}
    pool.control(RELEASE, "tenant:alice")
    pool.turn()
    pool.control(ControlKind.CANCEL, "tenant:alice")
    pool.run()
    assert {pool.ended[request].reason for request in alices} == {FinishReason.CANCELLED}


class Machine(RuleBasedStateMachine):
    """Any order of arrivals, steps, drains and ends: nothing is lost, and nobody idles."""

    @initialize(
        swap=st.booleans(),
        cached=st.booleans(),
        depth=st.integers(1, 2),
        num_blocks=st.integers(10, 24),
    )
    def build(self, swap: bool, cached: bool, depth: int, num_blocks: int) -> None:
        self.pool = Pool(
            "a",
            "b",
            num_blocks=num_blocks,
            max_running=2,
            max_step_tokens=12,
            depth=depth,
            num_host_blocks=16,
            preemption="swap" if swap else "recompute",
            prefix_cache=cached,
        )
        self.num_workers = 2
        self.cancelled: set[RequestId] = set()

    @rule(
        prompt=st.integers(1, 12),
        shared=st.integers(0, 12),
        max_tokens=st.integers(1, 14),
        tenant=st.sampled_from(["t", "u"]),
        priority=st.integers(-1, 1),
    )
    def submit(self, prompt: int, shared: int, max_tokens: int, tenant: str, priority: int) -> None:
        serial = len(self.pool.prompts)
        tokens = (*SHARED[:shared], *range(2000 + 100 * serial, 2000 + 100 * serial + prompt))
        self.pool.submit(f"r{serial}", tokens, max_tokens, tenant=tenant, priority=priority)

    @rule(which=st.integers(0, 3))
    def step(self, which: int) -> None:
        names = list(self.pool.shadows)
        self.pool.turn(names[which % len(names)])

    @rule()
    def steps(self) -> None:
        self.pool.turn()

    @precondition(lambda self: self.num_workers < 4)
    @rule()
    def join(self) -> None:
        self.pool.join("abcd"[self.num_workers])
        self.num_workers += 1

    @rule(
        kind=st.sampled_from([DRAIN, RELEASE]),
        what=st.sampled_from(["worker:a", "worker:b", "tenant:t"]),
    )
    def drain(self, kind: ControlKind, what: str) -> None:
        self.pool.control(kind, what)
        self.pool.act()

    @precondition(lambda self: self.pool.prompts)
    @rule(
        data=st.data(),
        kind=st.sampled_from([ControlKind.HOLD, RELEASE, ControlKind.PRIORITY, ControlKind.CANCEL]),
    )
    def control(self, data: st.DataObject, kind: ControlKind) -> None:
        request = data.draw(st.sampled_from(list(self.pool.prompts)))
        if kind is ControlKind.CANCEL and request not in self.pool.ended:
            self.cancelled.add(request)
        self.pool.control(kind, request)
        self.pool.act()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "pool"):
            self.pool.act()
            self.nobody_idles()
            self.everybody_is_somewhere()

    def nobody_idles(self) -> None:
        """No worker has seats and no line while another has what it could start."""
        workers = self.pool.leader.fleet.hiring()
        moved = self.pool.leader.placement._balancing._moved
        for idle in (worker for worker in workers if worker.is_idle):
            for other in (worker for worker in workers if worker is not idle):
                for request in other.core.stealable(100):
                    assert (
                        other.core.waiting.aside(request)
                        or request.arrival > other.seen
                        or request.id in moved
                        or idle.blocks_to_start(request) > idle.num_spare_blocks
                    ), f"{request.id} waits on {other.id}, and {idle.id} is idle"

    def everybody_is_somewhere(self) -> None:
        fleet = self.pool.leader.fleet
        places = [list(fleet.unassigned)]
        places += [list(worker.core.requests) for worker in fleet.workers.values()]
        found = [request for place in places for request in place]
        assert len(found) == len(set(found)), "in two places"
        assert set(found) == self.pool.prompts.keys() - self.pool.ended.keys()
        for worker in fleet.workers.values():
            assert worker.num_assigned == len(worker.core.requests)
            if worker.is_draining:
                assert not worker.core.stealable(100), "it waits on a worker that is draining"

    def teardown(self) -> None:
        """Released, everything ends, with all its tokens."""
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        for target in ("worker:a", "worker:b", "tenant:t", *pool.prompts):
            pool.control(RELEASE, target)
        pool.leader.watched()
        pool.run(2000)
        assert pool.ended.keys() == pool.prompts.keys()
        for request, (_, max_tokens) in pool.prompts.items():
            end = pool.ended[request]
            assert len(pool.journals[request]) == max_tokens or request in self.cancelled
            assert (end.reason is FinishReason.LENGTH) or request in self.cancelled


TestPlacement = Machine.TestCase
TestPlacement.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
