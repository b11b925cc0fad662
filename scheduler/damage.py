"""Journals that refuse what their leader writes, since somebody else wrote into them; pure.

Only a person or a foreign program does that. What the request gets from then on would be lost with
its gateway, so it ends with an error, and says so behind whatever stands there.
"""

from collections.abc import Sequence
from dataclasses import replace

from common.bus import Outcome, Write, WriteEnd, WriteTokens
from common.messages import FinishReason, Journal

LAST_TOTAL = (1 << 64) - 1  # an end with this number stands behind every other entry
DAMAGED = "its journal is damaged"

JournalWrite = WriteTokens | WriteEnd


def refused(writes: Sequence[Write], outcomes: Sequence[Outcome]) -> list[JournalWrite]:
    return [
        write
        for write, outcome in zip(writes, outcomes, strict=True)
        if outcome is Outcome.REFUSED and isinstance(write, JournalWrite)
    ]


def end_behind_all(write: WriteEnd, journal: Journal) -> WriteEnd:
    """In place of an end that was refused: of what can be read, that much counts."""
    end = replace(write.end, reason=FinishReason.ERROR, kept=len(journal.tokens), error=DAMAGED)
    return replace(write, total=LAST_TOTAL, end=end)
