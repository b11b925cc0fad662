"""The requests that have rows on the worker, and what it has yet to hear of them."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from operator import attrgetter

from common.messages import BlockId, GatewayId, RequestId
from scheduler.core.block_pool import Blocks, blocks_for
from scheduler.core.peak import Growth, peak_blocks
from scheduler.core.request import NEVER, Place, Request

_rank = attrgetter("rank")


class Running:
    def __init__(
        self,
        pool: Blocks,
        max_preemptions: int,
        max_running: int,
        max_rows: int,
        max_step_tokens: int,
        depth: int,
    ) -> None:
        self.pool = pool
        self.max_step_tokens = max_step_tokens
        self.depth = depth
        self.max_running = max_running
        self.max_rows = max_rows
        self.max_preemptions = max_preemptions
        self.released: list[RequestId] = []  # rows that the worker has yet to forget
        self.viewers: dict[RequestId, tuple[GatewayId, ...]] = {}  # that it has yet to hear of
        self.rows: list[Request] = []  # by rank; the last is preempted first
        self.num_growing = 0  # rows that may still need a block
        self.num_ending = 0  # rows that steps in flight bring to their end
        self.num_leaving = 0  # blocks of these
        self._num_protected = 0

    def __len__(self) -> int:
        return len(self.rows)

    def has_seat(self, num_ended: int) -> bool:
        """`num_ended` rows have no token in this step or later: only the worker holds them yet."""
        num_rows = len(self.rows)
        return num_rows - num_ended < self.max_running and num_rows < self.max_rows

    def add(self, request: Request) -> None:
        insort(self.rows, request, key=_rank)
        self._count(request, 1)

    def remove(self, request: Request) -> None:
        """Before its blocks are given back and its preemptions counted."""
        del self.rows[bisect_left(self.rows, request.rank, key=_rank)]
        self._count(request, -1)

    def vacate(self, request: Request, after: int) -> None:
        """Take its row, and its blocks, which are free once the last step, `after`, is applied.

        The end of its prefix is the first to be reused: others share beginnings.
        """
        self.remove(request)
        self.pool.give_back(request.block_table[::-1], after)
        request.block_table = []
        request.num_computed = request.num_planned = request.easy_tokens = 0
        request.row_since = NEVER
        self.released.append(request.id)
        self.viewers.pop(request.id, None)

    def _count(self, request: Request, sign: int) -> None:
        self.num_growing += sign * (remaining(request) > 0)
        self._num_protected += sign * self.is_protected(request)
        if request.is_all_promised:
            self.num_ending += sign
            self.num_leaving += sign * len(request.block_table)

    def leaves(self, request: Request) -> None:
        """A step was planned that promises its last token."""
        self.num_ending += 1
        self.num_leaving += len(request.block_table)

    def grow(self, request: Request, blocks: Sequence[BlockId]) -> None:
        request.block_table += blocks
        self.num_growing -= remaining(request) == 0

    def victim(self) -> Request:
        """The last in rank, but for those that leave by themselves as soon."""
        return next(row for row in reversed(self.rows) if not row.is_all_promised)

    def less_urgent(self, newcomer: Request) -> list[Request]:
        """Rows that the newcomer may displace, the last in rank first."""
        found = []
        for row in reversed(self.rows):
            if row.rank < newcomer.place:
                break
            if row.priority > newcomer.priority and not (
                self.is_protected(row) or row.is_all_promised
            ):
                found.append(row)
        return found

    def num_own(self, request: Request, shared: Iterable[BlockId] = ()) -> int:
        """Blocks that would be nobody's if it left, and if `shared` had one more owner."""
        pool, shared = self.pool, set(shared)
        return sum(pool.owners(b) == 1 and b not in shared for b in request.block_table)

    def keeps_word(
        self,
        newcomer: Request,
        rank: Place,
        hit: Sequence[BlockId],
        leaving: Sequence[Request] = (),
    ) -> bool:
        """Whether no protected row can ever be a victim if the newcomer joins, sharing `hit`.

        leaving: rows that would be none any more.

        The last row is a victim only when free and coming blocks do not cover what rows before it
        want. So for each protected row it is enough that all which it and those before it may
        still need is covered by free and coming blocks and by what rows behind it own alone. What
        is needed grows along the rows and what covers it shrinks, so the last protected row is the
        one to ask. Growth, ends and preemptions keep that true; only an admission can break it.
        """
        if not self._num_protected and not self.is_protected(newcomer):
            return True
        if not self.max_preemptions and not leaving and self._lasts(newcomer):
            return True
        rows = [row for row in self.rows if row not in leaving] if leaving else self.rows.copy()
        rows.insert(bisect_left(rows, rank, key=_rank), newcomer)
        supply = self.pool.num_expected - self.pool.num_unowned(hit)
        supply += sum(map(self.num_own, leaving))
        demand = sum(map(remaining, rows)) - len(hit)
        for row in reversed(rows):
            if self.is_protected(row):
                return demand <= supply
            demand -= remaining(row)
            if row is newcomer:
                demand += len(hit)
            else:
                supply += self.num_own(row, hit)
        return True

    def _lasts(self, newcomer: Request) -> bool:
        """Whether no row ever waits for a block if the newcomer joins and nobody after it.

        True only while every row that decodes gets its token in each step, or none does.
        """
        if len(self.rows) >= self.max_step_tokens:
            return False
        pool = self.pool
        decoding: list[Growth] = []
        others: list[Growth] = []
        for row in self.rows:
            (decoding if row.num_pending == 1 else others).append(_growth(row))
        blocks = blocks_for(len(newcomer.tokens), pool.block_size)
        tokens = newcomer.max_length - len(newcomer.tokens)
        others.append(Growth(blocks, tokens, newcomer.max_blocks - blocks))
        decoding.append(Growth(pool.num_expected - pool.num_free, 0, 0))  # of those who left
        # A last token is known `depth` steps after its plan, when as many are planned that the
        # row's blocks must outlast.
        peak = peak_blocks(decoding, others, pool.block_size, lag=2 * self.depth)
        return peak <= pool.num_blocks

    def is_protected(self, request: Request) -> bool:
        """It was preempted as often as may be: it came back for good."""
        return request.preemptions >= self.max_preemptions


def _growth(row: Request) -> Growth:
    tokens = row.max_length - len(row.tokens) - row.num_promised
    return Growth(len(row.block_table), tokens, remaining(row))


def remaining(request: Request) -> int:
    """Blocks that it may still need."""
    return request.max_blocks - len(request.block_table)
