"""batching=static: a batch is formed, closed, and done before the next."""

from typing import Any

import pytest

from common.messages import RequestId
from scheduler.core.strategies import Static
from tests.scheduler.core.driving import Drive, chunks, names, request, started


def static(**fields: Any) -> Drive:
    return Drive(batching="static", **fields)


def test_nobody_joins_a_closed_batch_although_seats_blocks_and_tokens_are_free() -> None:
    drive = static()
    drive.add("a", 2, max_tokens=3)
    drive.add("b", 2, max_tokens=3)
    assert started(drive.step()) == ["a", "b"]
    drive.add("c", 2)
    assert started(drive.step()) == []
    assert drive.passed == [("c", "closed")]
    assert started(drive.step()) == []
    assert started(drive.step()) == ["c"], "the batch has ended"


def test_the_same_requests_join_at_once_where_batching_is_continuous() -> None:
    drive = Drive()
    drive.add("a", 2, max_tokens=3)
    drive.step()
    drive.add("c", 2)
    assert started(drive.step()) == ["c"]


def test_a_batch_closes_in_the_step_after_which_nobody_waits() -> None:
    drive = static()
    drive.add("a", 2)
    drive.step()
    drive.add("b", 2)
    drive.step()
    assert drive.passed == [("b", "closed")]


def test_a_batch_is_formed_over_as_many_steps_as_its_prompts_take() -> None:
    drive = static(max_step_tokens=8)
    for name in "abc":
        drive.add(name, 7, max_tokens=9)
    assert chunks(drive.step()) == [("a", 0, 7), ("b", 0, 1)]
    assert chunks(drive.step()) == [("a", 7, 1), ("b", 1, 6), ("c", 0, 1)]
    drive.add("d", 1)
    assert started(drive.step()) == [], "the last one of those that waited has joined"
    assert drive.running == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("limit", "reason"), [({"max_running": 2}, "no_seat"), ({"num_blocks": 4}, "no_blocks")]
)
def test_a_batch_closes_where_seats_or_blocks_end(limit: dict[str, int], reason: str) -> None:
    """And takes nobody where some come free later."""
    drive = static(**limit)
    drive.add("a", 4, max_tokens=2)
    drive.add("b", 4, max_tokens=6)
    drive.add("c", 5, max_tokens=2)
    assert started(drive.step()) == ["a", "b"]
    assert drive.passed == [("c", reason)]
    drive.step()
    assert drive.running == ["b"]
    drive.step()
    assert drive.passed == [("c", "closed")]
    assert drive.finish() == ["a", "b", "c"]


def test_an_end_is_given_out_when_it_happens_and_not_with_the_batch() -> None:
    drive = static()
    drive.add("short", 2, max_tokens=1)
    drive.add("long", 2, max_tokens=9)
    drive.step()
    assert names([made.id for made in drive.scheduler.take_ended()]) == ["short"]
    assert drive.running == ["long"]
    assert names(drive.step().released) == ["short"]


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_who_was_preempted_comes_back_into_the_closed_batch(preemption: str) -> None:
    drive = static(num_blocks=4, block_size=2, preemption=preemption, num_host_blocks=4)
    drive.add("old", 2, max_tokens=4)
    drive.add("young", 1, max_tokens=6)
    drive.step()
    drive.add("c", 1, max_tokens=2)
    while "young" not in drive.preempted:
        drive.step()
    while "young" not in (came := started(drive.step())):
        assert came == []
    assert drive.line == ["c"]
    assert drive.finish()[-1] == "c"


def test_who_was_held_is_no_member_any_more() -> None:
    drive = static()
    drive.add("a", 2, max_tokens=6)
    held = drive.add("b", 2)
    drive.step()
    drive.scheduler.hold(held.id)
    drive.step()
    drive.scheduler.release(held.id)
    assert started(drive.step()) == []
    assert drive.passed == [("b", "closed")]
    assert drive.finish() == ["a", "b"]


def test_a_batch_whose_members_are_all_held_is_over() -> None:
    drive = static()
    drive.add("a", 2)
    drive.step()
    drive.scheduler.hold(RequestId("a.0"))
    drive.add("b", 2)
    assert started(drive.step()) == ["b"]


def test_whoever_waits_for_a_members_prefix_is_a_member() -> None:
    drive = static(prefix_cache=True, max_step_tokens=14)
    drive.add("a", 13)
    drive.add("b", 13)
    assert started(drive.plan()) == ["a"]
    assert [(seen.request_id, seen.reason) for seen in drive.scheduler.line(9)] == [
        ("b.0", "prefix")
    ]
    drive.answer()
    plan = drive.step()
    assert chunks(plan) == [("a", 13, 1), ("b", 12, 1)]
    assert plan.admitted[0].num_computed == 12


def test_a_closed_batch_is_not_opened_by_one_that_comes_back_and_lacks_tokens() -> None:
    batch, newcomer = Static(), request("a", 2)
    batch.settle(may_grow=True)
    assert batch.may_join(newcomer, 1)
    batch.settle(may_grow=False)
    batch.settle(may_grow=True)
    assert not batch.may_join(newcomer, 1)
    assert batch.may_join(newcomer, 0)
