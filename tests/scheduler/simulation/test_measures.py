"""Percentiles, the gap between tenants, and the slots of the cache."""

import pytest

from common.messages import BlockId, Chunk, RequestId
from scheduler.simulation.cache_use import CacheUse
from scheduler.simulation.fairness import Fairness
from scheduler.simulation.latencies import summary, weighted_summary
from scheduler.simulation.track import Track


def track(name: str = "r", tenant: str = "a", prompt: int = 100, answer: int = 10) -> Track:
    return Track(RequestId(name), tenant, 0.0, prompt, answer, token=1)


def test_percentiles_are_the_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    expected = {"mean": 50.5, "p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert summary(values) == expected
    assert summary(values[::-1]) == expected
    assert summary([3.0]) == {"mean": 3.0, "p50": 3.0, "p90": 3.0, "p99": 3.0, "max": 3.0}
    assert summary([]) == {}


def test_counted_values_are_the_same_as_repeated_ones() -> None:
    values, counts = [5.0, 1.0, 3.0, 9.0], [3, 8, 0, 1]
    repeated = [v for v, n in zip(values, counts, strict=True) for _ in range(n)]
    assert weighted_summary(values, counts) == pytest.approx(summary(repeated))


def backlog(fairness: Fairness, *tracks: Track) -> None:
    for each in tracks:
        fairness.waits(each)


def test_the_gap_of_two_that_wait() -> None:
    """a is served 100 + 2 x 10, b nothing; both wait on."""
    fairness = Fairness(1.0, 2.0, {})
    first = track("1", "a")
    backlog(fairness, first, track("2", "a"), track("3", "b"))
    fairness.note(1.0)
    fairness.starts(first)
    first.num_output = 10
    fairness.note(2.0)
    assert (fairness.max_gap, fairness.mean_gap, fairness.seconds) == (120.0, 60.0, 2.0)
    fairness.ends(first)
    fairness.note(5.0)
    assert fairness.mean_gap == (0 * 1 + 120 * 1 + 120 * 3) / 5


def test_service_before_both_wait_does_not_count() -> None:
    fairness = Fairness(1.0, 2.0, {})
    first = track("1", "a")
    backlog(fairness, first)
    fairness.starts(first)
    first.num_output = 10
    backlog(fairness, track("2", "a"), track("3", "b"))
    fairness.note(1.0)
    assert fairness.max_gap == 0.0


def test_a_tenant_that_wanted_nothing_meanwhile_begins_anew() -> None:
    fairness = Fairness(1.0, 2.0, {})
    lone, first = track("1", "b"), track("2", "a")
    backlog(fairness, lone, first, track("3", "a"))
    fairness.note(1.0)
    fairness.starts(first)
    fairness.starts(lone)  # nobody of b waits now
    fairness.note(2.0)
    assert fairness.seconds == 1.0
    backlog(fairness, track("4", "b"))
    first.num_output = 10
    fairness.note(3.0)
    assert (fairness.max_gap, fairness.seconds) == (0.0, 2.0)


def test_service_is_by_weight() -> None:
    fairness = Fairness(1.0, 2.0, {"a": 4.0})
    for each in (track("1", "a"), track("2", "b")):
        fairness.waits(each)
        fairness.starts(each)
        each.num_output = 10
        fairness.ends(each)
    assert fairness.service() == {"a": 30.0, "b": 120.0}


def blocks(*ids: int) -> list[BlockId]:
    return [BlockId(i) for i in ids]


def test_slots_of_the_cache() -> None:
    """Blocks of 16; a request that will store 20 + 30 - 1 = 49 tokens."""
    use, one = CacheUse(8, 16), track(prompt=20, answer=30)
    use.take(one, blocks(0, 1))
    use.store(20)
    one.last_chunk = Chunk(one.id, 0, 20, (), True)
    assert (use.num_taken, use.num_empty, use.num_useless) == (2, 12, 0)
    use.take(one, blocks(2, 3))
    assert (use.num_taken, use.num_empty, use.num_useless) == (4, 44, 15)
    use.last(2.0)
    assert (use.taken_seconds, use.empty_seconds, use.useless_seconds) == (128.0, 88.0, 30.0)
    use.release(one)
    assert (use.num_taken, use.num_empty, use.num_useless) == (0, 0, 0)


def test_a_shared_block_is_taken_once() -> None:
    use, one, other = CacheUse(8, 16), track("1"), track("2")
    use.take(one, blocks(0, 1))
    use.take(other, blocks(0, 2))
    assert use.num_taken == 3
    use.release(one)
    assert use.num_taken == 2
