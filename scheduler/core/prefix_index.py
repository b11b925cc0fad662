"""Which block holds which content: the hash of a block stands for all tokens up to its end."""

from collections.abc import Iterable, Sequence

from common.messages import BlockId


class PrefixIndex:
    """One block a hash and one hash a block."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, BlockId] = {}
        self.hashes: dict[BlockId, bytes] = {}

    def publish(self, blocks: Sequence[BlockId], contents: Sequence[bytes]) -> None:
        """Each block holds its content. Ignored where another does, or where it is said already."""
        known, hashes = self.blocks, self.hashes
        for block, content in zip(blocks, contents, strict=True):
            if content not in known:
                known[content] = block
                hashes[block] = content

    def forget(self, blocks: Iterable[BlockId]) -> None:
        """What they hold is overwritten, or not to be trusted."""
        known, hashes = self.blocks, self.hashes
        for block in blocks:
            content = hashes.pop(block, None)
            if content is not None:
                del known[content]
