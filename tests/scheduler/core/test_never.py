"""preemption=never: who is admitted stays."""

from typing import Any

import pytest

from tests.scheduler.core.driving import Drive, started


def never(**fields: Any) -> Drive:
    return Drive(preemption="never", **fields)


def test_only_those_are_admitted_that_can_stay_to_their_longest_end() -> None:
    """Two blocks and two to grow would be enough to begin with; six are what both may need."""
    for drive, together in ((never(num_blocks=4), ["a"]), (Drive(num_blocks=4), ["a", "b"])):
        drive.add("a", 4, max_tokens=9)
        drive.add("b", 4, max_tokens=9)
        assert started(drive.step()) == together
        assert drive.passed == ([("b", "no_blocks")] if together == ["a"] else [])
        assert drive.finish() == ["a", "b"]


def test_nobody_is_preempted_however_short_blocks_are() -> None:
    drive = never(num_blocks=8, block_size=2, max_running=8)
    requests = [drive.add(f"r{i}", 1 + i % 4, max_tokens=3 + i % 7, arrival=i) for i in range(30)]
    together = 0
    while drive.scheduler.requests:
        drive.step()
        together = max(together, len(drive.scheduler.running))
        assert drive.preempted == []
        assert drive.scheduler.last.short == []
        drive.take_ended()
    assert together > 1
    assert all(made.preemptions == 0 for made in requests)


@pytest.mark.parametrize("policy", ["priority", "deadline", "shortest"])
def test_a_more_urgent_one_displaces_nobody(policy: str) -> None:
    drive = never(max_running=1, policy=policy)
    drive.add("a", 2, max_tokens=20, priority=9)
    drive.step()
    drive.add("b", 2, max_tokens=1, arrival=1, priority=-9, ttft_target=0.001)
    for _ in range(5):
        drive.step()
        assert drive.running == ["a"]
    assert drive.finish() == ["a", "b"]


def test_a_more_urgent_one_that_shortens_what_others_rely_on_waits() -> None:
    drive = never(num_blocks=6, block_size=2)
    drive.add("a", 1, max_tokens=11, priority=1)
    drive.step()
    drive.add("b", 1, max_tokens=4, arrival=1, priority=0)
    assert started(drive.step()) == []
    assert drive.passed == [("b", "no_blocks")]
    assert drive.finish() == ["a", "b"]


def test_one_that_needs_all_of_memory_may_begin_with_what_is_cached() -> None:
    drive = never(num_blocks=4, prefix_cache=True)
    drive.add("a", 9, max_tokens=1)
    drive.finish()
    made = drive.add("b", 9, max_tokens=8)
    assert started(drive.step()) == ["b"]
    assert made.num_cached == 8
    assert drive.finish() == ["b"]
