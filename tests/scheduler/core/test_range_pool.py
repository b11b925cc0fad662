"""Ranges: first fit, neighbours that grow together again, and against a map of blocks."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common.messages import BlockId
from scheduler.core.range_pool import RangePool


def blocks(start: int, stop: int) -> tuple[BlockId, ...]:
    return tuple(BlockId(block) for block in range(start, stop))


def test_the_first_range_that_is_long_enough_is_cut_at_its_start() -> None:
    pool = RangePool(10, 4)
    tables = [pool.take(count) for count in (2, 3, 2)]
    assert tables == [blocks(0, 2), blocks(2, 5), blocks(5, 7)]
    pool.give_back(tables[0], after=0)
    assert pool.take(3) == blocks(7, 10)
    assert pool.take(1) == blocks(0, 1)


def test_what_is_free_in_pieces_is_not_there_for_more_than_a_piece() -> None:
    pool = RangePool(6, 4)
    tables = [pool.take(2) for _ in range(3)]
    pool.give_back(tables[0], after=0)
    pool.give_back(tables[2], after=0)
    assert pool.num_free == 4
    assert pool.has(2)
    assert not pool.has(3)
    with pytest.raises(AssertionError, match="no 3 consecutive blocks are free"):
        pool.take(3)
    pool.give_back(tables[1], after=0)
    assert pool.take(6) == blocks(0, 6)
    assert not pool.has(1)


def test_a_range_is_free_when_its_step_is_applied() -> None:
    pool = RangePool(4, 4)
    pool.give_back(pool.take(3), after=2)
    assert (pool.num_free, pool.num_expected) == (1, 4)
    pool.apply(1)
    assert not pool.has(2)
    pool.apply(2)
    assert (pool.num_free, pool.has(4)) == (4, True)


def test_the_blocks_of_an_owner_may_be_given_back_in_any_order() -> None:
    pool = RangePool(4, 4)
    pool.give_back(pool.take(3)[::-1], after=0)
    assert pool.take(4) == blocks(0, 4)


def test_a_range_is_shared_with_nobody() -> None:
    pool = RangePool(4, 4)
    table = pool.take(1)
    for refuses in (pool.share, pool.num_unowned, pool.num_idle):
        with pytest.raises(AssertionError, match="one owner"):
            refuses(table)
    assert (pool.owners(table[0]), pool.owners(BlockId(3)), pool.num_idle_cached) == (1, 0, 0)


class RangeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = RangePool(12, 1)
        self.owned: list[tuple[BlockId, ...]] = []
        self.coming: list[tuple[int, tuple[BlockId, ...]]] = []
        self.step = 0

    @rule(count=st.integers(1, 6))
    def take(self, count: int) -> None:
        free = self.free()
        fits = [s for s in range(13 - count) if set(range(s, s + count)) <= free]
        assert self.pool.has(count) == bool(fits)
        if fits:
            self.owned.append(self.pool.take(count))
            assert self.owned[-1] == blocks(fits[0], fits[0] + count)

    @precondition(lambda self: self.owned)
    @rule(which=st.integers(0, 9), ahead=st.integers(0, 2))
    def give_back(self, which: int, ahead: int) -> None:
        self.step += ahead
        table = self.owned.pop(which % len(self.owned))
        self.pool.give_back(table, after=self.step)
        self.coming.append((self.step, table))

    @rule(behind=st.integers(0, 2))
    def apply(self, behind: int) -> None:
        applied = max(self.pool._applied, self.step - behind)
        self.pool.apply(applied)
        self.coming = [(step, table) for step, table in self.coming if step > applied]

    def free(self) -> set[int]:
        applied = self.pool._applied
        coming = [table for step, table in self.coming if step > applied]
        return set(range(12)) - {block for table in (*self.owned, *coming) for block in table}

    @invariant()
    def counts(self) -> None:
        owned = {block for table in self.owned for block in table}
        assert self.pool.num_free == len(self.free())
        assert sorted(self.pool.unowned()) == sorted(set(range(12)) - owned)
        assert self.pool.num_expected == 12 - len(owned)


TestRanges = RangeMachine.TestCase
TestRanges.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
