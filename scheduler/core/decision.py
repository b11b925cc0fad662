"""What a step decided, and why."""

from dataclasses import dataclass, field
from enum import StrEnum

from common.messages import Chunk, RequestId, RowStart, Swap
from scheduler.core.request import Request


class Reason(StrEnum):
    """Why a request does not take part in a step, or how it lost its row."""

    NEW = "new"  # came after the last step was planned
    HELD = "held"
    DRAINED = "drained"  # its tenant is
    PREFIX = "prefix"  # another one computes the prefix that both have
    BEHIND = "behind"  # somebody before it waits
    PROMISED = "promised"  # tokens of its former life are in flight
    SHORTAGE = "shortage"  # rows that run lack blocks: nobody is admitted
    CLOSED = "closed"  # the batch takes nobody now
    NO_SEAT = "no_seat"  # max_running
    NO_TOKENS = "no_tokens"  # the budget of the step
    NO_BLOCKS = "no_blocks"
    RECOMPUTED = "recompute"  # lost its row on shortage, and what it had computed
    SWAPPED = "swap"  # lost its row on shortage; its blocks lie in host memory
    DISPLACED = "displaced"  # lost its row to a more urgent one


@dataclass(slots=True)
class Decision:
    """One step: a plan under construction, then the record of how it came about."""

    step: int
    tokens_left: int
    budget: int = 0  # tokens that it might have had
    num_ended: int = 0  # rows whose last token an earlier step promises
    chunks: list[Chunk] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)  # of the chunks, in their order
    admitted: list[RowStart] = field(default_factory=list)
    swap_out: list[Swap] = field(default_factory=list)
    swap_in: list[Swap] = field(default_factory=list)
    preempted: list[tuple[RequestId, Reason]] = field(default_factory=list)  # and how
    short: list[RequestId] = field(default_factory=list)  # ran, and got no blocks in this step
    num_claimed: int = 0  # blocks that the short ones wait for
    passed: list[tuple[RequestId, Reason]] = field(
        default_factory=list
    )  # other rows; heads of line
    num_missing: int = 0  # blocks that the head of the line lacked
    num_decoding: int = 0  # chunks of one token
    decode_context: int = 0  # tokens that these attend to
    prefill_attention: float = 0.0  # tokens of the other chunks times tokens that they attend to

    @property
    def num_tokens(self) -> int:
        return self.budget - self.tokens_left
