"""policy=priority: ageing, and rows that give way."""

from typing import Any

import pytest

from common.messages import FinishReason, RequestId
from scheduler.core.request import Status
from tests.scheduler.core.driving import Drive, chunks, names, request, started


def seated(**fields: Any) -> Drive:
    """`a` and `b`, less urgent, have both seats, or all blocks."""
    drive = Drive(**{"max_running": 2, "aging_seconds": 100.0, "depth": 0, **fields})
    drive.add("a", 4, max_tokens=8, arrival=0, priority=5)
    drive.add("b", 4, max_tokens=8, arrival=1, priority=4)
    drive.step()
    assert drive.running == ["b", "a"]
    return drive


@pytest.mark.parametrize(("arrival", "first"), [(59.9, "urgent"), (60.1, "old")])
def test_a_level_of_priority_is_worth_so_much_waiting(arrival: float, first: str) -> None:
    """Two levels of 30 seconds."""
    drive = Drive(max_running=1, aging_seconds=30.0)
    drive.add("old", 2, arrival=0, priority=2)
    drive.add("urgent", 2, arrival=arrival, priority=0)
    assert started(drive.plan()) == [first]


def test_a_more_urgent_one_displaces_the_least_urgent_for_a_seat() -> None:
    drive = seated()
    drive.add("c", 3, arrival=2)
    plan = drive.step()
    assert (names(plan.released), started(plan)) == (["a"], [])
    assert drive.scheduler.last.preempted == [("a.0", "displaced")]
    assert chunks(plan) == [("b", 4, 1)]
    plan = drive.step()
    assert started(plan) == ["c"]
    assert drive.running == ["c", "b"]
    assert drive.line == ["a"]


@pytest.mark.parametrize(("num_prompt", "victims"), [(4, []), (5, ["b"]), (9, ["b", "a"])])
def test_as_many_are_displaced_as_the_newcomer_needs_blocks_of(
    num_prompt: int, victims: list[str]
) -> None:
    """Each has one block of three, and will need no more."""
    drive = Drive(num_blocks=3, depth=0, aging_seconds=100.0)
    for name in "ab":
        drive.add(name, 2, max_tokens=3, priority=5)
    drive.step()
    drive.add("c", num_prompt, max_tokens=2, arrival=1)
    drive.step()
    assert drive.preempted == victims
    if victims:
        assert started(drive.step()) == ["c"]


def test_nobody_is_displaced_where_all_that_may_go_would_not_be_enough() -> None:
    drive = seated(max_running=4, num_blocks=9)
    drive.add("d", 8, max_tokens=5, arrival=1, priority=0)
    drive.step()
    before = drive.running
    drive.add("c", 25, arrival=2, max_tokens=3, priority=1)
    for _ in range(3):
        drive.step()
        assert drive.preempted == []
    assert drive.running == before


def test_nobody_is_displaced_for_one_that_is_no_more_urgent() -> None:
    """It stands before them in line, having come first, and that is not enough."""
    drive = seated()
    drive.add("c", 3, arrival=-1000, priority=5)
    for _ in range(3):
        drive.step()
        assert drive.preempted == []


def test_nobody_is_displaced_by_one_that_stands_behind_in_spite_of_its_urgency() -> None:
    drive = seated()
    drive.add("c", 3, arrival=1000, priority=0)
    drive.step()
    assert drive.preempted == []


def test_blocks_that_others_share_do_not_count_as_those_of_a_victim() -> None:
    """Of the nine of each, eight are of both; free are two, and the newcomer wants four."""
    drive = Drive(
        num_blocks=12, prefix_cache=True, depth=0, max_step_tokens=64, aging_seconds=100.0
    )
    for name, priority in (("keep", 0), ("victim", 5)):
        made = drive.add(name, 33, max_tokens=3)
        drive.scheduler.set_priority(made.id, priority)
        drive.step()
    assert drive.running == ["keep", "victim"]
    assert drive.scheduler.pool.num_free == 2
    other = request("c", 0, 2, arrival=1, tokens=tuple(range(100, 116)))
    drive.scheduler.add(other)
    drive.step()
    assert drive.preempted == []


def test_nobody_is_displaced_for_one_that_may_not_join_the_batch() -> None:
    drive = seated(batching="static")
    drive.add("c", 3, arrival=2)
    drive.step()
    assert (drive.preempted, drive.passed) == ([], [("c", "closed")])


def test_who_has_waited_long_enough_is_not_displaced_for_its_urgency() -> None:
    """Both would have to go; only `young` stands behind the newcomer."""
    drive = Drive(num_blocks=3, depth=0, aging_seconds=100.0)
    drive.add("aged", 2, max_tokens=3, arrival=-1000, priority=5)
    drive.add("young", 2, max_tokens=3, arrival=0, priority=5)
    drive.step()
    drive.add("c", 9, max_tokens=2, arrival=1)
    drive.step()
    assert drive.preempted == []


def test_nobody_is_displaced_where_a_seat_and_blocks_are_free() -> None:
    drive = seated(max_running=3)
    drive.add("c", 3, arrival=2)
    assert started(drive.step()) == ["c"]
    assert drive.preempted == []


def test_who_is_displaced_keeps_its_place_and_comes_back_by_it() -> None:
    drive = seated()
    displaced = drive.scheduler.requests[RequestId("a.0")]
    drive.add("c", 3, arrival=2, max_tokens=4)
    drive.add("d", 3, arrival=3, priority=5, max_tokens=4)
    drive.step()
    assert (displaced.preemptions, displaced.status) == (1, Status.WAITING)
    assert displaced.rank == displaced.place
    drive.step()
    assert drive.line == ["a", "d"]


def test_nobody_is_displaced_more_often_than_may_be() -> None:
    drive = Drive(max_running=1, max_preemptions=2, aging_seconds=1000.0, depth=0)
    victim = drive.add("a", 2, max_tokens=60, priority=1)
    for i in range(4):
        drive.step()
        drive.add(f"u{i}", 2, max_tokens=2, arrival=i + 1)
        for _ in range(4):
            drive.step()
    assert victim.preemptions == 2
    assert drive.running == ["a"]
    assert drive.finish()[-3:] == ["a", "u2", "u3"]


def test_one_that_leaves_by_itself_is_not_displaced() -> None:
    drive = Drive(max_running=1, aging_seconds=100.0, depth=1)
    drive.add("a", 2, max_tokens=2, priority=5)
    drive.plan()
    drive.plan()
    drive.add("b", 2, arrival=1)
    drive.answer()
    assert drive.scheduler.schedule() is None
    assert drive.preempted == []
    drive.answer()
    assert started(drive.plan()) == ["b"]


def test_displaced_blocks_go_to_host_memory_where_preemption_is_swap() -> None:
    drive = seated(preemption="swap", num_host_blocks=8)
    drive.add("c", 3, arrival=2, max_tokens=1)
    plan = drive.step()
    assert len(plan.swap_out) == 1
    assert drive.scheduler.requests[RequestId("a.0")].status is Status.SWAPPED
    assert len(drive.next_start().swap_in) == 0, "that of c"
    assert len(drive.next_start().swap_in) == 1


def test_a_preempted_one_does_not_displace_while_its_tokens_are_promised() -> None:
    drive = Drive(max_running=1, aging_seconds=100.0, depth=2)
    held = drive.add("held", 2, priority=0)
    drive.plan()
    drive.scheduler.hold(held.id)
    drive.add("a", 2, arrival=1, priority=5)
    drive.plan()
    drive.scheduler.release(held.id)
    drive.plan()
    assert drive.preempted == []
    drive.answer()
    drive.plan()
    assert drive.preempted == ["a"]


@pytest.mark.parametrize("policy", ["fcfs", "fair", "shortest", "deadline"])
def test_other_policies_displace_nobody(policy: str) -> None:
    drive = Drive(max_running=1, policy=policy, aging_seconds=100.0, depth=0)
    drive.add("a", 2, max_tokens=9, arrival=5, priority=5, ttft_target=500.0)
    drive.step()
    drive.add("c", 2, max_tokens=1, arrival=6, priority=0, ttft_target=0.1)
    for _ in range(4):
        drive.step()
        assert drive.preempted == []


def test_an_operator_moves_one_in_line_and_it_displaces() -> None:
    drive = seated()
    drive.add("c", 3, arrival=2, priority=9)
    drive.step()
    assert drive.preempted == []
    drive.scheduler.set_priority(RequestId("c.0"), 0)
    drive.step()
    assert drive.preempted == ["a"]


def test_a_row_that_is_made_less_urgent_keeps_its_rank() -> None:
    drive = seated()
    drive.scheduler.set_priority(RequestId("b.0"), 9)
    assert drive.running == ["b", "a"]
    drive.add("c", 3, arrival=2)
    drive.step()
    assert drive.preempted == ["a"]


def test_nobody_comes_and_goes_for_ever_when_two_are_made_urgent_in_turns() -> None:
    drive = Drive(max_running=1, aging_seconds=100.0, depth=0)
    drive.add("a", 2, max_tokens=9, priority=5)
    drive.add("b", 2, max_tokens=9, arrival=1, priority=5)
    for turn in range(40):
        name = "ab"[turn % 2]
        drive.scheduler.set_priority(RequestId(f"{name}.0"), -turn)
        if drive.scheduler.requests:
            drive.step()
        drive.take_ended()
    assert [made.finish_reason for made in drive.ended] == [FinishReason.LENGTH] * 2
    assert all(made.preemptions <= 3 for made in drive.ended)


def test_returning_ones_go_before_the_more_urgent() -> None:
    """They were admitted once, and it is not their fault."""
    drive = Drive(num_blocks=4, block_size=2, depth=0)
    drive.add("old", 2, max_tokens=6)
    drive.add("young", 1, max_tokens=6, arrival=1)
    while "young" not in drive.preempted:
        drive.step()
    drive.scheduler.add(request("urgent", 2, 4, arrival=-100))
    head = drive.scheduler.waiting.head
    assert head
    assert head.id == "young.0"
    assert started(drive.next_start())[0] == "young"
