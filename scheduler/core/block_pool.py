"""Which KV cache blocks are free. Counts ownership only; holds no tensors.

A block has owners, several where they share a prefix; or it is free; or it is *coming*: given back
while steps were in flight that may still read or write it, and free as soon as the last of them is
applied. A free block keeps its content until it is taken: while the prefix cache knows what is in
it, it can be shared again, and it is taken only when there is no blank one.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from common.messages import BlockId
from scheduler.core.prefix_index import PrefixIndex


class Blocks(Protocol):
    """What a scheduler asks of its memory: `BlockPool`, or `RangePool` where kv=reserved."""

    num_blocks: int
    block_size: int  # tokens

    @property
    def num_free(self) -> int: ...

    @property
    def num_expected(self) -> int:
        """Blocks free now or once the steps in flight are applied."""
        ...

    @property
    def num_idle_cached(self) -> int:
        """Free blocks whose content can be shared again."""
        ...

    def has(self, count: int) -> bool:
        """Whether `take(count)` would succeed."""
        ...

    def take(self, count: int) -> tuple[BlockId, ...]:
        """`count` free blocks; the caller has looked that there are so many."""
        ...

    def share(self, blocks: Iterable[BlockId]) -> None:
        """One more owner for each."""
        ...

    def give_back(self, blocks: Sequence[BlockId], after: int) -> None:
        """One owner less; blocks without any are free when step `after` is applied.

        `after` never decreases. The first of `blocks` are reused first.
        """
        ...

    def apply(self, step: int) -> None:
        """The step, and with it all before it, touches nothing any more."""
        ...

    def owners(self, block: BlockId) -> int: ...

    def num_unowned(self, blocks: Iterable[BlockId]) -> int:
        """How many of them `share` would take from what is expected."""
        ...

    def num_idle(self, blocks: Iterable[BlockId]) -> int:
        """How many of them `share` would take from what is free."""
        ...

    def unowned(self) -> list[BlockId]:
        """All blocks free or coming, for whoever checks that none is lost."""
        ...


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


class BlockPool:
    """Blocks one by one, with owners counted."""

    def __init__(self, num_blocks: int, block_size: int, index: PrefixIndex | None = None) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._index = index or PrefixIndex(num_blocks)
        self._owners = [0] * num_blocks
        self._blank = [BlockId(i) for i in reversed(range(num_blocks))]  # taken from the end
        self._cached: OrderedDict[BlockId, None] = (
            OrderedDict()
        )  # free, content known; oldest first
        self._coming: dict[BlockId, int] = {}  # the step after which it is free
        self._releases: deque[tuple[int, Sequence[BlockId]]] = deque()  # by step
        self._applied = 0  # the last step applied

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._cached)

    @property
    def num_coming(self) -> int:
        return len(self._coming)

    @property
    def num_idle_cached(self) -> int:
        return len(self._cached)

    @property
    def num_expected(self) -> int:
        return len(self._blank) + len(self._cached) + len(self._coming)

    def has(self, count: int) -> bool:
        return count <= self.num_free

    def take(self, count: int) -> tuple[BlockId, ...]:
        assert 0 <= count <= self.num_free, f"{count} blocks taken of {self.num_free} free"
        blank = self._blank
        rest = len(blank) - count
        if rest >= 0:
            taken = tuple(blank[rest:])
            del blank[rest:]
        else:
            pop = self._cached.popitem
            oldest = [pop(last=False)[0] for _ in range(-rest)]
            self._index.forget(oldest)
            taken = (*blank, *oldest)
            blank.clear()
        owners = self._owners
        for block in taken:
            owners[block] = 1
        return taken

    def share(self, blocks: Iterable[BlockId]) -> None:
        for block in blocks:
            if not self._owners[block] and self._coming.pop(block, None) is None:
                del self._cached[block]
            self._owners[block] += 1

    def give_back(self, blocks: Sequence[BlockId], after: int) -> None:
        owners, ownerless = self._owners, []
        for block in blocks:
            owners[block] -= 1
            if not owners[block]:
                ownerless.append(block)
        if after <= self._applied:
            self._free(ownerless)
        else:
            self._releases.append((after, ownerless))
            for block in ownerless:
                self._coming[block] = after

    def apply(self, step: int) -> None:
        self._applied = step
        coming = self._coming
        while self._releases and self._releases[0][0] <= step:
            after, blocks = self._releases.popleft()
            # One that was shared again meanwhile is not coming, or by a later release.
            free = [block for block in blocks if coming.get(block) == after]
            for block in free:
                del coming[block]
            self._free(free)

    def owners(self, block: BlockId) -> int:
        return self._owners[block]

    def num_unowned(self, blocks: Iterable[BlockId]) -> int:
        return sum(not self._owners[block] for block in blocks)

    def num_idle(self, blocks: Iterable[BlockId]) -> int:
        return sum(block in self._cached for block in blocks)

    def unowned(self) -> list[BlockId]:
        return [*self._blank, *self._cached, *self._coming]

    def _free(self, blocks: Iterable[BlockId]) -> None:
        contents, cached = self._index.contents, self._cached
        for block in blocks:
            if contents[block] is not None:
                cached[block] = None
            else:
                self._blank.append(block)
