"""Which blocks of host memory are free for what is swapped out."""

from collections.abc import Iterable

from common.messages import HostBlockId


class HostPool:
    """Steps copy in order, out before in: a block is free as soon as its owner needs it no more."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = [HostBlockId(i) for i in reversed(range(num_blocks))]

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[HostBlockId]:
        assert count <= len(self._free), f"{count} host blocks taken of {len(self._free)} free"
        return [self._free.pop() for _ in range(count)]

    def give_back(self, blocks: Iterable[HostBlockId]) -> None:
        self._free.extend(blocks)
