"""Who loses a row to a more urgent request: as few as bring it in, and nobody in vain."""

from scheduler.core.block_pool import Blocks, blocks_for
from scheduler.core.range_pool import RangePool
from scheduler.core.request import Place, Request
from scheduler.core.running import Running, remaining


def victims(
    head: Request, rank: Place, running: Running, pool: Blocks, num_ended: int
) -> list[Request]:
    """Rows to preempt so that `head` can be admitted in the next step; none if that is no use.

    rank: that it would have among the rows. num_ended: as in `Running.has_seat`.
    """
    found: list[Request] = []
    for row in running.less_urgent(head):
        if _comes_in(head, rank, found, running, pool, num_ended):
            return found
        found.append(row)
    return found if _comes_in(head, rank, found, running, pool, num_ended) else []


def _comes_in(
    head: Request,
    rank: Place,
    leaving: list[Request],
    running: Running,
    pool: Blocks,
    num_ended: int,
) -> bool:
    if not leaving and not running.has_seat(num_ended):
        return False
    if isinstance(pool, RangePool):  # who leaves may leave pieces only
        return pool.has(head.max_blocks)
    staying = [row for row in running.rows if row not in leaving]
    growing = sum(remaining(row) > 0 for row in staying)
    # In the step between, those that stay take what their next tokens need.
    growing += sum(_known(row) > len(row.block_table) * pool.block_size for row in staying)
    needed = blocks_for(len(head.tokens), pool.block_size) + growing
    supply = pool.num_expected + sum(running.num_own(row) for row in leaving)
    return needed <= supply and running.keeps_word(head, rank, (), leaving)


def _known(row: Request) -> int:
    return len(row.tokens) + row.num_promised
