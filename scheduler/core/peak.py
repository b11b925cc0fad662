"""How many blocks those who run take at most, if nobody joins them any more.

A row that decodes gets one token in each step. So it is known when each ends at the latest, and
that those with long answers grow into the blocks of those with short ones: far fewer blocks are
needed than all would take if they stood at their longest together.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from scheduler.core.block_pool import blocks_for


class Growth(NamedTuple):
    """What becomes of a row that goes on to its longest end."""

    blocks: int  # that it has
    tokens: int  # that it may still draw
    room: int  # blocks that it may still take


def peak_blocks(
    decoding: Iterable[Growth], others: Sequence[Growth], block_size: int, lag: int
) -> int:
    """An upper bound, sharp but for what is left in last blocks.

    decoding: get a token in each step; their blocks are free `lag` steps after the last one.
    others: grow as fast at most, and keep their blocks, since nobody knows when they end.
    """
    rows = sorted(decoding, key=lambda row: row.tokens)
    lengths = [row.tokens for row in rows]
    held = list(accumulate((row.blocks for row in rows), initial=0))  # by the first i
    grown = list(accumulate((row.room for row in rows), initial=0))  # of these, at their ends
    peak = sum(row.blocks + row.room for row in others)  # when all who decode have left
    for steps in {length + lag for length in lengths}:  # just before somebody's blocks are free
        gone, still = bisect_left(lengths, steps - lag), bisect_left(lengths, steps)
        more = blocks_for(steps, block_size)
        peak = max(
            peak,
            held[-1]
            - held[gone]  # of those whose blocks are not free
            + grown[still]
            - grown[gone]  # those who have drawn their last
            + (len(rows) - still) * more  # those who go on
            + sum(row.blocks + min(more, row.room) for row in others),
        )
    return peak
