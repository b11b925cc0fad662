"""The requests that have rows on the worker, and what it has yet to hear of them."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import attrgetter

from common.messages import BlockId, GatewayId, RequestId
from scheduler.core.block_pool import BlockPool
from scheduler.core.request import Request

_place = attrgetter("place")


class Running:
    def __init__(self, pool: BlockPool, max_preemptions: int) -> None:
        self.pool = pool
        self.max_preemptions = max_preemptions
        self.released: list[RequestId] = []  # rows that the worker has yet to forget
        self.viewers: dict[RequestId, tuple[GatewayId, ...]] = {}  # that it has yet to hear of
        self.rows: list[Request] = []  # by place; the last is preempted first
        self.num_growing = 0  # rows that may still need a block
        self.num_leaving = 0  # blocks of rows that steps in flight bring to their end
        self._num_protected = 0

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, request: Request) -> None:
        insort(self.rows, request, key=_place)
        self._count(request, 1)

    def remove(self, request: Request) -> None:
        """Before its blocks are given back and its preemptions counted."""
        del self.rows[bisect_left(self.rows, request.place, key=_place)]
        self._count(request, -1)

    def vacate(self, request: Request, after: int) -> None:
        """Take its row, and its blocks, which are free once the last step, `after`, is applied."""
        self.remove(request)
        self.pool.give_back(request.block_table, after)
        request.block_table = []
        request.num_computed = request.num_planned = 0
        self.released.append(request.id)
        self.viewers.pop(request.id, None)

    def _count(self, request: Request, sign: int) -> None:
        self.num_growing += sign * (_remaining(request) > 0)
        self._num_protected += sign * self._is_protected(request)
        if request.is_all_promised:
            self.num_leaving += sign * len(request.block_table)

    def grow(self, request: Request, blocks: Sequence[BlockId]) -> None:
        request.block_table += blocks
        self.num_growing -= _remaining(request) == 0

    def victim(self) -> Request:
        """The youngest, but for those that leave by themselves as soon."""
        return next(row for row in reversed(self.rows) if not row.is_all_promised)

    def keeps_word(self, newcomer: Request, num_expected: int) -> bool:
        """Whether no protected row can ever be a victim if the newcomer joins.

        The youngest row is a victim only when free and coming blocks do not cover what older ones
        want. So for each protected row it is enough that all which it and the older ones may
        still need is covered by free and coming blocks and by what younger rows hold. Growth, ends
        and preemptions keep that true; only an admission can break it, so each is asked.
        """
        if not self._num_protected and not self._is_protected(newcomer):
            return True
        rows = self.rows.copy()
        insort(rows, newcomer, key=_place)
        demand, supply = sum(map(_remaining, rows)), num_expected
        for row in reversed(rows):
            if self._is_protected(row) and demand > supply:
                return False
            demand -= _remaining(row)
            supply += len(row.block_table)
        return True

    def _is_protected(self, request: Request) -> bool:
        """It was preempted as often as may be: it came back for good."""
        return request.preemptions >= self.max_preemptions


def _remaining(request: Request) -> int:
    return request.max_blocks - len(request.block_table)
