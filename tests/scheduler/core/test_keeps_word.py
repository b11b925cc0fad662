"""Whether a newcomer could make a row step back that was promised to stay, with what it shares."""

from common.messages import BlockId
from scheduler.core.block_pool import BlockPool
from scheduler.core.prefix_index import PrefixIndex
from scheduler.core.request import Request, Status
from scheduler.core.running import Running
from tests.scheduler.core.driving import request

BLOCK_SIZE, NUM_BLOCKS = 4, 20


class Rows:
    """Rows by hand; one that was preempted once may not be again."""

    def __init__(self) -> None:
        self.index = PrefixIndex(NUM_BLOCKS)
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE, self.index)
        self.running = Running(self.pool, 1, 8, 8, 64, 1)

    def add(self, name: str, rank: int, *, has: int, lacks: int, protected: bool) -> Request:
        """A row with so many blocks, which may come to need so many more."""
        made = request(name, 4)
        made.status, made.rank = Status.RUNNING, (rank,)
        made.block_table = list(self.pool.take(has))
        made.max_blocks = has + lacks
        made.preemptions = int(protected)
        self.running.add(made)
        return made

    def cached(self, count: int) -> list[BlockId]:
        """Free blocks whose content is known."""
        blocks = self.pool.take(count)
        self.index.publish(blocks, [b"%d" % block for block in blocks])
        self.pool.give_back(blocks, after=0)
        return list(blocks)

    def leave_free(self, count: int) -> None:
        self.pool.take(self.pool.num_free - count)


def newcomer(max_blocks: int) -> Request:
    made = request("new", 4)
    made.max_blocks = max_blocks
    return made


def test_what_a_newcomer_shares_is_no_room_for_those_before_it() -> None:
    """Ten blocks are free; two of them it takes out of what a protected row may need."""
    for lacks, is_kept in ((8, True), (9, False)):
        rows = Rows()
        rows.leave_free(10)
        rows.add("a", 0, has=0, lacks=lacks, protected=True)
        hit = rows.cached(2)
        assert rows.running.keeps_word(newcomer(4), (1,), hit) == is_kept


def test_a_row_behind_makes_no_room_with_blocks_that_a_newcomer_shares() -> None:
    for num_shared, is_kept in ((1, True), (2, False)):
        rows = Rows()
        behind = rows.add("b", 2, has=2, lacks=0, protected=False)
        rows.leave_free(4)
        rows.add("a", 0, has=0, lacks=5, protected=True)
        hit = behind.block_table[:num_shared]
        assert rows.running.keeps_word(newcomer(4), (1,), hit) == is_kept


def test_a_protected_newcomer_needs_less_by_what_it_shares() -> None:
    for max_blocks, is_kept in ((6, True), (7, False)):
        rows = Rows()
        other = rows.add("a", 0, has=2, lacks=0, protected=False)
        rows.leave_free(4)
        made = newcomer(max_blocks)
        made.preemptions = 1
        assert rows.running.keeps_word(made, (1,), other.block_table) == is_kept
