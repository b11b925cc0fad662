"""Blocks have one owner, and are free only when nothing in flight touches them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.block_pool import BlockPool, blocks_for


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 4) == blocks


def test_taking_more_than_is_free_changes_nothing() -> None:
    pool = BlockPool(3, 4)
    taken = pool.take(2)
    with pytest.raises(AssertionError, match="2 blocks taken of 1 free"):
        pool.take(2)
    assert sorted([*taken, *pool.take(1)]) == [0, 1, 2]
    assert pool.num_free == 0


def test_blocks_given_back_come_with_the_step_that_may_touch_them() -> None:
    pool = BlockPool(3, 4)
    first, second = pool.take(1), pool.take(1)
    pool.give_back(first, after=1)
    pool.give_back(second, after=2)
    assert (pool.num_free, pool.num_coming, pool.num_expected) == (1, 2, 3)
    pool.apply(1)
    assert (pool.num_free, pool.num_coming) == (2, 1)
    pool.apply(2)
    assert (pool.num_free, pool.num_coming) == (3, 0)
    pool.give_back(pool.take(3), after=2)
    assert pool.num_free == 3, "nothing is in flight any more"


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.booleans()), max_size=30))
def test_no_block_is_lost_or_taken_twice(moves: list[tuple[int, int, bool]]) -> None:
    pool, owned, step = BlockPool(8, 1), [], 0
    for count, ahead, gives in moves:
        if count <= pool.num_free:
            owned.append(pool.take(count))
        if gives and owned:
            step += ahead
            pool.give_back(owned.pop(), after=step)
        pool.apply(max(0, step - 1))
        blocks = [*pool.unowned(), *(block for blocks in owned for block in blocks)]
        assert sorted(blocks) == list(range(8))
        assert len(pool.unowned()) == pool.num_expected
