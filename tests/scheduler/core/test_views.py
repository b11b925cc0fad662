"""What else a plan carries, and how line and rows look from outside."""

from common.messages import FinishReason, GatewayId, RequestId
from scheduler.core.decision import Reason
from scheduler.core.invariants import check
from scheduler.core.request import Status
from tests.scheduler.core.driving import Drive


def test_new_viewers_go_out_with_the_next_plan_if_a_row_exists() -> None:
    drive = Drive(max_running=1)
    running, waiting = drive.add("a", 2, max_tokens=3), drive.add("b", 2)
    drive.step()
    for made in (running, waiting):
        drive.scheduler.set_gateways(made.id, (GatewayId("g"), GatewayId("h")))
    assert drive.step().gateways == (("a.0", ("g", "h")),)
    assert drive.step().gateways == ()
    assert drive.step().admitted[0].gateways == ("g", "h")


def test_viewers_of_a_row_that_is_gone_are_not_told() -> None:
    drive = Drive()
    made = drive.add("a", 2)
    drive.step()
    drive.scheduler.set_gateways(made.id, ())
    drive.scheduler.end(made.id, FinishReason.CANCELLED)
    assert drive.step().gateways == ()


def test_views_tell_who_runs_and_why_the_others_wait() -> None:
    drive = Drive(max_running=1, max_step_tokens=4)
    for name in "abc":
        drive.add(name, 8)
    drive.step()
    (row,) = drive.scheduler.rows()
    assert (row.request_id, row.status, row.reason) == ("a.0", Status.RUNNING, None)
    assert (row.num_prompt, row.num_computed, row.num_output, row.num_blocks) == (8, 4, 0, 2)
    reasons = [(seen.request_id, seen.reason) for seen in drive.scheduler.line(9)]
    assert reasons == [("b.0", Reason.NO_SEAT), ("c.0", Reason.BEHIND)]
    assert len(drive.scheduler.line(1)) == 1
    assert drive.scheduler.waiting.num_tokens == 16


def test_the_more_urgent_goes_first_and_who_runs_keeps_its_place() -> None:
    drive = Drive(max_running=1, preemption="never")
    for name in "abcd":
        drive.add(name, 2, max_tokens=2)
    drive.step()
    for name, priority in (("a", 9), ("b", 1), ("c", -1), ("d", 1)):
        drive.scheduler.set_priority(RequestId(f"{name}.0"), priority)
    check(drive.scheduler)
    assert drive.finish() == ["a", "c", "b", "d"]
