"""The memory of `kv=reserved`: each request gets one contiguous range, first fit.

What the literature compares paging with: a range is taken for the longest length that its request
may reach, and what lies free in pieces is of no use to anyone who needs more than a piece.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence

from common.messages import BlockId

_Range = tuple[int, int]  # [start, stop)


class RangePool:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._ranges: list[_Range] = [(0, num_blocks)]  # free, by start; no two touch
        self._num_free = num_blocks
        self._coming: deque[tuple[int, _Range]] = deque()  # (step, range), by step
        self._num_coming = 0
        self._applied = 0

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_idle_cached(self) -> int:
        return 0

    @property
    def num_expected(self) -> int:
        return self._num_free + self._num_coming

    def has(self, count: int) -> bool:
        return any(stop - start >= count for start, stop in self._ranges)

    def take(self, count: int) -> tuple[BlockId, ...]:
        """`count` blocks with consecutive numbers."""
        for i, (start, stop) in enumerate(self._ranges):
            if stop - start >= count:
                self._ranges[i : i + 1] = [(start + count, stop)] if stop - start > count else []
                self._num_free -= count
                return tuple(BlockId(block) for block in range(start, start + count))
        raise AssertionError(f"no {count} consecutive blocks are free")

    def share(self, blocks: Iterable[BlockId]) -> None:
        assert not list(blocks), "a contiguous range has one owner"

    def give_back(self, blocks: Sequence[BlockId], after: int) -> None:
        """All blocks of one owner, in any order."""
        span = (min(blocks), max(blocks) + 1)
        if after <= self._applied:
            self._free(span)
        else:
            self._coming.append((after, span))
            self._num_coming += span[1] - span[0]

    def apply(self, step: int) -> None:
        self._applied = step
        while self._coming and self._coming[0][0] <= step:
            _, span = self._coming.popleft()
            self._num_coming -= span[1] - span[0]
            self._free(span)

    def owners(self, block: BlockId) -> int:
        return int(block not in self.unowned())

    def num_unowned(self, blocks: Iterable[BlockId]) -> int:
        assert not list(blocks), "a contiguous range has one owner"
        return 0

    num_idle = num_unowned

    def unowned(self) -> list[BlockId]:
        ranges = [*self._ranges, *(span for _, span in self._coming)]
        return [BlockId(block) for start, stop in ranges for block in range(start, stop)]

    def _free(self, span: _Range) -> None:
        self._num_free += span[1] - span[0]
        ranges = self._ranges
        at = bisect_left(ranges, span)
        if at < len(ranges) and ranges[at][0] == span[1]:
            span = (span[0], ranges.pop(at)[1])
        if at and ranges[at - 1][1] == span[0]:
            span = (ranges.pop(at - 1)[0], span[1])
        insort(ranges, span)
