"""Blocks are free only when nobody owns them and nothing in flight touches them."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common.messages import BlockId
from scheduler.core.block_pool import BlockPool, blocks_for
from scheduler.core.host_pool import HostPool
from scheduler.core.prefix_index import PrefixIndex


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 4) == blocks


def test_taking_more_than_is_free_changes_nothing() -> None:
    pool = BlockPool(3, 4)
    taken = pool.take(2)
    assert pool.has(1)
    assert not pool.has(2)
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


def known(pool: BlockPool, index: PrefixIndex, count: int) -> tuple[BlockId, ...]:
    """Blocks with an owner, and content that the index knows."""
    blocks = pool.take(count)
    for block in blocks:
        index.publish([block], [b"%d" % block])
    return blocks


def test_blank_blocks_are_taken_before_those_whose_content_is_known() -> None:
    index = PrefixIndex(4)
    pool = BlockPool(4, 4, index)
    blocks = known(pool, index, 2)
    pool.give_back(blocks, after=0)
    assert (pool.num_free, pool.num_idle_cached) == (4, 2)
    assert not set(pool.take(2)) & set(blocks)
    assert pool.num_idle_cached == 2
    assert pool.take(1) == blocks[:1], "given back first, taken first"
    assert index.known == {blocks[1]}


def test_a_free_block_may_be_shared_and_is_free_no_more() -> None:
    index = PrefixIndex(3)
    pool = BlockPool(3, 4, index)
    blocks = known(pool, index, 2)
    pool.give_back(blocks, after=0)
    assert (pool.num_idle(blocks), pool.num_unowned(blocks)) == (2, 2)
    pool.share(blocks[:1])
    assert (pool.num_idle(blocks), pool.num_unowned(blocks)) == (1, 1)
    assert (pool.num_free, pool.owners(blocks[0])) == (2, 1)
    pool.share(blocks[:1])
    pool.give_back(blocks[:1], after=0)
    assert (pool.num_free, pool.owners(blocks[0])) == (2, 1)


def test_a_block_that_is_shared_while_it_comes_does_not_become_free() -> None:
    index = PrefixIndex(1)
    pool = BlockPool(1, 4, index)
    (block,) = known(pool, index, 1)
    pool.give_back([block], after=1)
    assert (pool.num_idle([block]), pool.num_unowned([block])) == (0, 1)
    pool.share([block])
    assert pool.num_coming == 0
    pool.apply(1)
    assert pool.num_free == 0
    pool.give_back([block], after=2)
    pool.apply(2)
    assert pool.num_free == 1


def test_a_block_that_was_shared_again_comes_with_its_last_release() -> None:
    index = PrefixIndex(1)
    pool = BlockPool(1, 4, index)
    (block,) = known(pool, index, 1)
    pool.give_back([block], after=1)
    pool.share([block])
    pool.give_back([block], after=2)
    pool.apply(1)
    assert (pool.num_free, pool.num_coming) == (0, 1)
    pool.apply(2)
    assert (pool.num_free, pool.num_coming) == (1, 0)


class PoolMachine(RuleBasedStateMachine):
    """Against owners counted by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(6)
        self.pool = BlockPool(6, 1, self.index)
        self.owned: list[tuple[BlockId, ...]] = []
        self.busy: dict[BlockId, int] = {}  # the step after which nothing touches it
        self.step = self.applied = self.names = 0

    @rule(count=st.integers(1, 3))
    def take(self, count: int) -> None:
        if self.pool.has(count):
            taken = self.pool.take(count)
            assert not self.index.known & set(taken)
            assert not {block for table in self.owned for block in table} & set(taken)
            assert all(self.busy.get(block, 0) <= self.applied for block in taken)
            self.owned.append(taken)

    @precondition(lambda self: self.owned)
    @rule(which=st.integers(0, 9))
    def publish(self, which: int) -> None:
        self.names += 1
        table = self.owned[which % len(self.owned)]
        if table[0] not in self.index.known:
            self.index.publish(table[:1], [b"%d" % self.names])

    @precondition(lambda self: self.index.known)
    @rule(which=st.integers(0, 9))
    def share(self, which: int) -> None:
        block = sorted(self.index.known)[which % len(self.index.known)]
        self.pool.share([block])
        self.owned.append((block,))

    @precondition(lambda self: self.owned)
    @rule(which=st.integers(0, 9), ahead=st.integers(0, 2))
    def give_back(self, which: int, ahead: int) -> None:
        self.step += ahead
        table = self.owned.pop(which % len(self.owned))
        self.pool.give_back(table, after=self.step)
        self.busy |= dict.fromkeys(table, self.step)

    @rule(behind=st.integers(0, 2))
    def apply(self, behind: int) -> None:
        self.applied = max(self.applied, self.step - behind)
        self.pool.apply(self.applied)

    @invariant()
    def counts(self) -> None:
        owners = [block for table in self.owned for block in table]
        free = set(range(6)) - set(owners)
        coming = {block for block in free if self.busy.get(BlockId(block), 0) > self.applied}
        assert sorted(self.pool.unowned()) == sorted(free)
        assert self.pool.num_expected == len(free)
        assert self.pool.num_free == len(free - coming)
        assert self.pool.num_idle_cached == len((free - coming) & self.index.known)
        assert [self.pool.owners(BlockId(b)) for b in range(6)] == [
            owners.count(BlockId(b)) for b in range(6)
        ]


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_host_blocks_are_handed_out_once_and_come_back() -> None:
    host = HostPool(3)
    taken = host.take(2)
    assert host.num_free == 1
    with pytest.raises(AssertionError, match="2 host blocks taken of 1 free"):
        host.take(2)
    host.give_back(taken)
    assert sorted(host.take(3)) == [0, 1, 2]
