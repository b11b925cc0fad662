"""Everything that crosses a process boundary. Stdlib only: every service imports this.

Grouped by receiver. A *submission* is what one HTTP request asked for: one or more prompts, `n`
choices of each. Each choice is a *request* of its own for scheduler and worker, with the id
`<submission>.<choice>`, where choice = prompt index * n + index among the prompt's n.

Messages are frozen. The two that are made once for each row of each step, `Chunk` and `Sampled`,
only look it: a frozen dataclass takes 1.7 us to make, a plain one 0.5. Nobody changes one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NewType

VERSION = 2  # of all messages; a reader refuses what it does not know

SubmissionId = NewType("SubmissionId", str)
RequestId = NewType("RequestId", str)
WorkerId = NewType("WorkerId", str)
GatewayId = NewType("GatewayId", str)
BlockId = NewType("BlockId", int)
HostBlockId = NewType("HostBlockId", int)  # a block in host memory, where swapped-out ones lie
Swap = tuple[BlockId, HostBlockId]

SEED_BITS = 63


class FinishReason(StrEnum):
    STOP = "stop"  # an end token, or a stop string that the gateway found
    LENGTH = "length"  # the last allowed token
    CANCELLED = "cancelled"  # the client left, or somebody took the request out
    DEADLINE = "deadline"
    ERROR = "error"
    REFUSED = "refused"  # it can never run here: the request is at fault
    OVERLOADED = "overloaded"  # the line is full


def request_id(submission: SubmissionId, choice: int) -> RequestId:
    return RequestId(f"{submission}.{choice}")


def submission_of(request: RequestId) -> SubmissionId:
    return SubmissionId(request.rpartition(".")[0])


def choice_of(request: RequestId) -> int:
    return int(request.rpartition(".")[2])


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one choice: choice 0 keeps the submission's, the others are scattered from it."""
    return (seed + choice * 0x5851F42D4C957F2D) & ((1 << SEED_BITS) - 1)


# --- Gateway to scheduler ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a row's next token is drawn; a function of the logits, the seed and the position."""

    seed: int  # [0, 2**63); drawn by the gateway where the client gave none
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, added to its logit)


@dataclass(frozen=True, slots=True)
class Ending:
    """When a row ends by itself. Stop strings are the gateway's: a worker knows no text."""

    max_tokens: int  # output tokens, at least 1
    min_tokens: int = 0  # no end token is drawn before so many
    end_tokens: tuple[int, ...] = ()  # drawn last, part of the answer, never shown as text


@dataclass(frozen=True, slots=True)
class Submit:
    """One entry of `requests`: all that is needed to answer, whoever dies."""

    submission_id: SubmissionId
    prompts: tuple[tuple[int, ...], ...]  # token ids
    n: int  # choices of each prompt
    sampling: Sampling
    ending: Ending
    gateway: GatewayId  # that holds the client's socket
    tenant: str = "anonymous"
    priority: int = 0  # smaller is more urgent
    deadline_seconds: float | None = None  # from the moment a scheduler reads it
    ttft_target_seconds: float | None = None  # likewise; orders the line under policy=deadline
    resumable: bool = False  # runs on when its gateway is gone
    digest: str = ""  # of the body, for Idempotency-Key
    frame: Mapping[str, Any] = field(default_factory=dict)  # what frames need; the gateway's own

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n

    def request_ids(self) -> list[RequestId]:
        return [request_id(self.submission_id, choice) for choice in range(self.num_choices)]


class ControlKind(StrEnum):
    CANCEL = "cancel"
    STOP = "stop"  # end with `kept` tokens: the gateway found a stop string
    ATTACH = "attach"  # `gateway` shows this request too
    DETACH = "detach"
    HOLD = "hold"
    RELEASE = "release"
    PRIORITY = "priority"
    DRAIN = "drain"  # `target` starts nothing new; what runs of it ends
    WEIGHT = "weight"  # of a tenant, under policy=fair


@dataclass(frozen=True, slots=True)
class Control:
    """One entry of `control`, flat, so that `redis-cli XADD` can write it by hand."""

    kind: ControlKind
    target: str  # a request, a submission (all its choices), `tenant:<name>` or `worker:<name>`
    kept: int = 0
    gateway: GatewayId = GatewayId("")
    priority: int = 0
    weight: float = 1.0


# --- Scheduler to worker ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowStart:
    """A request that joins, or comes back after a preemption: all the worker must know of it."""

    request_id: RequestId
    tokens: tuple[int, ...]  # all that are known: the prompt, then the answer so far
    num_prompt: int
    sampling: Sampling  # with the seed of this choice
    ending: Ending
    gateways: tuple[GatewayId, ...]  # who gets its tokens
    num_computed: int = 0  # first tokens whose K and V lie in the blocks of its first chunk already


@dataclass(slots=True, unsafe_hash=True)  # as good as frozen
class Chunk:
    """The part of one request that one step computes: its tokens [start, start + count)."""

    request_id: RequestId
    start: int
    count: int
    new_blocks: tuple[BlockId, ...]  # appended to the request's block table before the step
    samples: bool  # the chunk reaches the last known or promised token, so a new one is sampled


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass. Says only what changed: the worker keeps a row for each request.

    A worker does, in this order: forget `released`, copy `swap_out` to host memory, then `swap_in`
    back, start `admitted`, set `gateways`, compute `chunks`. A chunk of a row that ended by itself
    in an earlier step is passed over.
    """

    step: int
    released: tuple[RequestId, ...] = ()  # finished or preempted since the last plan
    admitted: tuple[RowStart, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    gateways: tuple[tuple[RequestId, tuple[GatewayId, ...]], ...] = ()  # whose viewers changed
    swap_out: tuple[Swap, ...] = ()
    swap_in: tuple[Swap, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)


# --- Worker to scheduler ----------------------------------------------------------------------


@dataclass(slots=True, unsafe_hash=True)  # as good as frozen
class Sampled:
    """One new token of one request."""

    request_id: RequestId
    position: int  # in the answer, from 0
    token: int
    finish: FinishReason | None = None  # STOP or LENGTH: the row ended by itself with this token


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step sampled: an entry of the worker's log. In it, a token exists."""

    step: int
    sampled: tuple[Sampled, ...]
    seconds: float  # wall time of the step
    errors: Mapping[RequestId, str] = field(default_factory=dict)  # rows that ended alone, and why


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """A worker's field in `workers`."""

    worker_id: WorkerId
    model: str
    device: str
    num_blocks: int
    block_size: int  # tokens
    max_request_tokens: int  # prompt and answer of one request
    max_step_tokens: int
    max_rows: int
    num_host_blocks: int = 0  # room for blocks that are swapped out
    beat: int = 0
    step: int = 0  # now running; 0: none
    step_beats: int = 0  # for how many beats it has run
    leaving: bool = False  # it wants no more plans: drained, or failed
    failed: str = ""  # by what exception


# --- To gateways, by pub/sub ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The tokens of one step that concern one gateway."""

    sampled: tuple[Sampled, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """A request has ended; told once its end is in the journal, which says the same."""

    request_id: RequestId
    kept: int  # output tokens that count
    reason: FinishReason
    error: str = ""
    cached_tokens: int = 0  # of the prompt, found in the prefix cache


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The subscription began, or began anew: what was published meanwhile is missed."""


Notice = TokenBatch | Ended | Subscribed


# --- What stands in Redis and is read back ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class JournalHead:
    """The first entry of a request's journal."""

    request_id: RequestId
    entry: str  # of `requests` that it was made from: an entry with another id is a copy
    num_prompt: int
    tenant: str
    digest: str
    frame: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Journal:
    """A request's journal as read: `tokens` is what it holds so far."""

    head: JournalHead | None  # None: no such journal
    tokens: tuple[int, ...] = ()
    end: Ended | None = None
