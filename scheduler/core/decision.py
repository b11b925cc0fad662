"""What a step decided, and how the line and the rows look from outside: for status and timeline."""

from dataclasses import dataclass, field
from enum import StrEnum

from common.messages import Chunk, RequestId, RowStart
from scheduler.core.request import Request, Status


class Reason(StrEnum):
    """Why a request does not take part in a step."""

    NEW = "new"  # came after the last step was planned
    HELD = "held"
    BEHIND = "behind"  # somebody before it waits
    PROMISED = "promised"  # tokens of its former life are in flight
    SHORTAGE = "shortage"  # rows that run lack blocks: nobody is admitted
    CLOSED = "closed"  # the batch takes nobody now
    NO_SEAT = "no_seat"  # max_running
    NO_TOKENS = "no_tokens"  # max_step_tokens
    NO_BLOCKS = "no_blocks"


@dataclass(slots=True)
class Decision:
    """One step: a plan under construction, then the record of how it came about."""

    step: int
    tokens_left: int
    chunks: list[Chunk] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)  # of the chunks, in their order
    admitted: list[RowStart] = field(default_factory=list)
    preempted: list[RequestId] = field(default_factory=list)
    short: list[RequestId] = field(default_factory=list)  # ran, and got no blocks in this step
    num_claimed: int = 0  # blocks that the short ones wait for
    passed: tuple[RequestId, Reason] | None = None  # the head of the line, where it stayed


@dataclass(frozen=True, slots=True)
class View:
    """A request as a person sees it."""

    request_id: RequestId
    status: Status
    tenant: str
    priority: int
    num_prompt: int
    num_output: int
    num_computed: int
    num_blocks: int
    preemptions: int
    reason: Reason | None  # None: it takes part


def view(request: Request, reason: Reason | None) -> View:
    return View(
        request.id,
        request.status,
        request.tenant,
        request.priority,
        request.num_prompt,
        request.num_output,
        request.num_computed,
        len(request.block_table),
        request.preemptions,
        reason,
    )
