"""Which block holds which content: the hash of a block stands for all tokens up to its end."""

from collections.abc import Iterable, Sequence

from common.messages import BlockId


class PrefixIndex:
    """One block a hash and one hash a block."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks: dict[bytes, BlockId] = {}
        self.contents: list[bytes | None] = [None] * num_blocks  # of each block, as far as known

    @property
    def known(self) -> set[BlockId]:
        """Blocks whose content can be shared."""
        return set(self.blocks.values())

    def publish(self, blocks: Sequence[BlockId], contents: Sequence[bytes]) -> None:
        """Each block holds its content. Ignored where another does, or where it is said already."""
        known, of_block = self.blocks, self.contents
        for block, content in zip(blocks, contents, strict=True):
            if content not in known:
                known[content] = block
                of_block[block] = content

    def forget(self, blocks: Iterable[BlockId]) -> None:
        """What they hold is overwritten, or not to be trusted."""
        known, of_block = self.blocks, self.contents
        for block in blocks:
            content = of_block[block]
            if content is not None:
                of_block[block] = None
                del known[content]
