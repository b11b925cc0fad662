"""Which block holds which content: the hash of a block stands for all tokens up to its end."""

from common.messages import BlockId


class PrefixIndex:
    """One block a hash and one hash a block."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, BlockId] = {}
        self.hashes: dict[BlockId, bytes] = {}

    def publish(self, block: BlockId, content: bytes) -> None:
        """The block holds this. Ignored where another does, or where it is said already."""
        if content not in self.blocks:
            self.blocks[content] = block
            self.hashes[block] = content

    def forget(self, block: BlockId) -> None:
        """What it holds is overwritten, or not to be trusted."""
        content = self.hashes.pop(block, None)
        if content is not None:
            del self.blocks[content]
