"""How well the slots of the KV cache are used: taken, holding a token, kept for later, useless.

Counted as a worker sees it, from the blocks that plans name; a block that several requests share
is taken once. Figures are weighted by time.
"""

from collections.abc import Sequence

from common.messages import BlockId
from scheduler.simulation.track import Track


class CacheUse:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size  # tokens
        self.num_taken = 0  # blocks
        self.num_empty = 0  # slots of taken blocks that hold no token yet
        self.num_useless = 0  # of these, slots that never will
        self.seconds = 0.0
        self.taken_seconds = 0.0  # slots x seconds, as the next two
        self.empty_seconds = 0.0
        self.useless_seconds = 0.0
        self.most_taken = 0  # blocks
        self._owners = [0] * num_blocks

    def take(self, track: Track, blocks: Sequence[BlockId]) -> None:
        owners = self._owners
        for block in blocks:
            self.num_taken += not owners[block]
            owners[block] += 1
        self.most_taken = max(self.most_taken, self.num_taken)
        track.blocks += blocks
        num_slots = len(track.blocks) * self.block_size
        useless = max(0, num_slots - track.most_stored)
        self.num_empty += len(blocks) * self.block_size
        self.num_useless += useless - track.num_useless
        track.num_useless = useless

    def store(self, num_tokens: int) -> None:
        """So many slots of taken blocks are filled; also those that were found filled."""
        self.num_empty -= num_tokens

    def release(self, track: Track) -> None:
        owners = self._owners
        for block in track.blocks:
            owners[block] -= 1
            self.num_taken -= not owners[block]
        self.num_empty -= len(track.blocks) * self.block_size - track.num_stored
        self.num_useless -= track.num_useless
        track.blocks, track.num_useless, track.last_chunk = [], 0, None

    def last(self, seconds: float) -> None:
        """All is as it is for so long."""
        self.seconds += seconds
        self.taken_seconds += seconds * self.num_taken * self.block_size
        self.empty_seconds += seconds * self.num_empty
        self.useless_seconds += seconds * self.num_useless
