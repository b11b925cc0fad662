"""How long a step takes: what a step asks of a device, and models that turn it into seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from common.messages import Chunk


@dataclass(slots=True)
class Load:
    """What one step computes. Context counts positions, the token's own among them."""

    tokens: int = 0  # of all chunks
    rows: int = 0  # chunks
    decode_context: int = 0  # positions that single tokens look at, all together
    prefill_context: float = 0  # the same for chunks of several: sum of tokens x mean context
    stored_context: int = 0  # positions whose K and V are read, once for each row
    samples: int = 0  # rows that draw a token
    swapped_tokens: int = 0  # slots that move between device and host


class CostModel(Protocol):
    def seconds(self, load: Load) -> float: ...


def decoding(rows: int, context: int, swapped_tokens: int = 0) -> Load:
    """Rows of one token each, which look at so many positions all together."""
    return Load(rows, rows, context, 0, context, rows, swapped_tokens)


def load_of(chunks: Sequence[Chunk], swapped_tokens: int = 0) -> Load:
    starts = [chunk.start for chunk in chunks if chunk.count == 1]
    num_single = len(starts)
    load = decoding(num_single, sum(starts) + num_single, swapped_tokens)
    if num_single == len(chunks):
        return load
    for chunk in chunks:
        count = chunk.count
        if count > 1:
            load.tokens += count
            load.rows += 1
            load.prefill_context += count * (chunk.start + (count + 1) / 2)
            load.stored_context += chunk.start + count
            load.samples += chunk.samples
    return load


@dataclass(frozen=True, slots=True)
class Constant:
    """step + token * tokens; what `--backend simulated` takes with the same flags."""

    step: float  # seconds
    token: float = 0.0

    def seconds(self, load: Load) -> float:
        return self.step + self.token * load.tokens


@dataclass(frozen=True, slots=True)
class Linear:
    """step + token * tokens + decode_context * (positions that decoding rows look at)
    + row * rows + prefill_context * (prefilled tokens x their context) + swapped * slots moved.

    All in seconds.
    """

    step: float = 0.0
    token: float = 0.0
    decode_context: float = 0.0
    row: float = 0.0
    prefill_context: float = 0.0
    swapped: float = 0.0

    def seconds(self, load: Load) -> float:
        return (
            self.step
            + self.token * load.tokens
            + self.decode_context * load.decode_context
            + self.row * load.rows
            + self.prefill_context * load.prefill_context
            + self.swapped * load.swapped_tokens
        )
