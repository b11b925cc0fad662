"""Which KV cache blocks are free. Counts ownership only; holds no tensors.

A block is owned by a request, or free, or *coming*: given back while steps were in flight that may
still read or write it, and free as soon as the last of them is applied.
"""

from collections import deque
from collections.abc import Sequence

from common.messages import BlockId


class BlockPool:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size  # tokens
        self.num_coming = 0
        self._free = [BlockId(i) for i in reversed(range(num_blocks))]  # taken from the end
        self._coming: deque[tuple[int, Sequence[BlockId]]] = deque()  # (step, blocks), by step
        self._applied = 0  # the last step applied

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_expected(self) -> int:
        """Blocks free now or once the steps in flight are applied."""
        return len(self._free) + self.num_coming

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def take(self, count: int) -> tuple[BlockId, ...]:
        """`count` free blocks, at least one; the caller has looked that there are so many."""
        assert 0 < count <= len(self._free), f"{count} blocks taken of {len(self._free)} free"
        taken = tuple(self._free[-count:])
        del self._free[-count:]
        return taken

    def give_back(self, blocks: Sequence[BlockId], after: int) -> None:
        """The blocks are free when step `after` is applied. `after` never decreases."""
        if after <= self._applied:
            self._free.extend(blocks)
        else:
            self._coming.append((after, blocks))
            self.num_coming += len(blocks)

    def apply(self, step: int) -> None:
        """The step, and with it all before it, touches nothing any more."""
        self._applied = step
        while self._coming and self._coming[0][0] <= step:
            _, blocks = self._coming.popleft()
            self._free.extend(blocks)
            self.num_coming -= len(blocks)

    def unowned(self) -> list[BlockId]:
        """All blocks free or coming, for whoever checks that none is lost."""
        return [*self._free, *(block for _, blocks in self._coming for block in blocks)]
