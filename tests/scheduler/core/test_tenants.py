"""Tenants that are drained, and requests that are given to other workers."""

from common.messages import FinishReason, RequestId
from tests.scheduler.core.driving import Drive, chunks, names, request, started


def test_a_drained_tenant_is_passed_over_and_what_runs_ends() -> None:
    drive = Drive()
    drive.add("a", 2, max_tokens=3, tenant="x")
    drive.step()
    drive.add("b", 2, tenant="x")
    drive.scheduler.drain_tenant("x")
    drive.add("c", 2, tenant="x")
    drive.add("d", 2, max_tokens=2, tenant="y")
    plan = drive.step()
    assert started(plan) == ["d"]
    assert ("a", 2, 1) in chunks(plan)
    reasons = [(seen.request_id, seen.reason) for seen in drive.scheduler.line(9)]
    assert reasons == [("b.0", "drained"), ("c.0", "drained")]
    assert drive.scheduler.waiting.num_tokens == 0
    assert drive.scheduler.waiting.num_held == 2
    drive.step()
    assert not drive.scheduler.running.rows
    drive.scheduler.undrain_tenant("x")
    assert started(drive.step()) == ["b", "c"]


def test_draining_twice_and_undraining_what_is_not_drained_change_nothing() -> None:
    drive = Drive()
    drive.add("a", 2, tenant="x")
    drive.scheduler.undrain_tenant("x")
    drive.scheduler.drain_tenant("x")
    drive.scheduler.drain_tenant("x")
    drive.scheduler.undrain_tenant("y")
    assert drive.scheduler.schedule() is None
    drive.scheduler.undrain_tenant("x")
    assert started(drive.step()) == ["a"]


def test_one_held_and_drained_goes_on_when_it_is_neither() -> None:
    drive = Drive()
    made = drive.add("a", 2, tenant="x")
    drive.scheduler.hold(made.id)
    drive.scheduler.drain_tenant("x")
    drive.scheduler.release(made.id)
    assert drive.scheduler.schedule() is None
    drive.scheduler.hold(made.id)
    drive.scheduler.undrain_tenant("x")
    assert drive.scheduler.schedule() is None
    drive.scheduler.release(made.id)
    assert started(drive.step()) == ["a"]


def test_a_drained_one_can_be_cancelled() -> None:
    drive = Drive()
    made = drive.add("a", 2, tenant="x")
    drive.scheduler.drain_tenant("x")
    drive.scheduler.end(made.id, FinishReason.CANCELLED)
    assert drive.scheduler.take_ended() == [made]


# --- For other workers ------------------------------------------------------------------------


def test_one_that_waits_is_given_back_as_it_came() -> None:
    drive = Drive(max_running=1)
    drive.add("a", 2)
    made = drive.add("b", 2)
    drive.plan()
    assert names([r.id for r in drive.scheduler.stealable(9)]) == ["b"]
    assert drive.scheduler.take_back(made.id) is made
    assert made.id not in drive.scheduler.requests
    assert drive.scheduler.line(9) == []
    other = Drive()
    other.scheduler.add(made)
    assert other.finish() == ["b"]


def test_the_first_in_line_are_offered_first_and_no_more_than_asked() -> None:
    drive = Drive(max_running=1)
    for i in range(5):
        drive.add(f"r{i}", 2, arrival=i)
    drive.plan()
    assert names([r.id for r in drive.scheduler.stealable(2)]) == ["r1", "r2"]


def test_who_runs_ended_or_is_unknown_is_not_given_back() -> None:
    drive = Drive()
    running = drive.add("a", 2)
    drive.plan()
    ended = drive.add("b", 2)
    drive.scheduler.end(ended.id, FinishReason.CANCELLED)
    for request_id in (running.id, ended.id, RequestId("x.0")):
        assert drive.scheduler.take_back(request_id) is None


def test_one_with_tokens_in_flight_is_not_given_back() -> None:
    drive = Drive(depth=2)
    made = drive.add("a", 2)
    drive.plan()
    drive.scheduler.hold(made.id)
    assert drive.scheduler.take_back(made.id) is None
    assert drive.scheduler.stealable(9) == []
    drive.answer()
    assert drive.scheduler.take_back(made.id) is made
    assert made.tokens == [1, 2, 7]


def test_a_preempted_one_is_given_back_and_keeps_count_of_its_preemptions() -> None:
    drive = Drive(num_blocks=4, block_size=2, depth=0)
    drive.add("old", 2, max_tokens=6)
    young = drive.add("young", 1, max_tokens=6)
    while "young" not in drive.preempted:
        drive.step()
    assert drive.scheduler.take_back(young.id) is young
    assert (young.preemptions, young.rank, young.is_returning) == (1, (), False)
    other = Drive()
    other.scheduler.add(young)
    assert chunks(other.plan()) == [("young", 0, len(young.tokens))]


def test_a_charge_for_the_prompt_is_made_once_by_whatever_worker() -> None:
    drive = Drive(policy="fair", num_blocks=4, block_size=2, depth=0)
    drive.add("old", 2, max_tokens=6, tenant="x")
    young = drive.add("young", 1, max_tokens=6, tenant="y")
    while "young" not in drive.preempted:
        drive.step()
    drive.scheduler.take_back(young.id)
    other = Drive(policy="fair", shares=drive.scheduler.shares)
    other.scheduler.add(young)
    other.finish()
    assert drive.scheduler.shares.served["y"] == 1 + 2 * 6


def test_tokens_that_wait_are_counted_until_they_are_computed() -> None:
    drive = Drive(max_step_tokens=8)
    drive.add("a", 20)
    drive.add("b", 5)
    assert drive.scheduler.backlog_tokens == 25
    drive.plan()
    assert drive.scheduler.backlog_tokens == 17
    drive.plan()
    assert drive.scheduler.backlog_tokens == 9
    made = request("c", 3)
    drive.scheduler.add(made)
    assert drive.scheduler.backlog_tokens == 12
    drive.scheduler.take_back(made.id)
    assert drive.scheduler.backlog_tokens == 9
