"""One request as the scheduler sees it, and the only legal moves between its states."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from hashlib import blake2b

from common.messages import (
    BlockId,
    Ending,
    FinishReason,
    GatewayId,
    HostBlockId,
    RequestId,
    RowStart,
    Sampling,
    Submit,
    choice_seed,
    request_id,
)

# Where a request stands in every order: smaller goes first, and the greatest is preempted first.
Place = tuple[float, ...]
NEVER = 1 << 62  # more than any count of tokens or steps


class Status(Enum):
    WAITING = auto()  # owns no blocks, has no row on the worker
    RUNNING = auto()  # owns blocks, has a row; takes part in steps
    SWAPPED = auto()  # owns blocks of host memory only; waits in line
    FINISHED = auto()  # owns no blocks; terminal


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.WAITING: frozenset({Status.RUNNING, Status.FINISHED}),
    Status.RUNNING: frozenset({Status.WAITING, Status.SWAPPED, Status.FINISHED}),
    Status.SWAPPED: frozenset({Status.WAITING, Status.RUNNING, Status.FINISHED}),
    Status.FINISHED: frozenset(),
}


class IllegalTransitionError(Exception):
    """A request was asked to make a move that its state does not allow."""


@dataclass(slots=True, eq=False)
class Request:
    """Its counts, over the positions of prompt and answer together:

        0 ... num_computed ... num_planned ... len(tokens) ... len(tokens) + num_promised
        | K, V in the cache  | steps in      | known, not     | sampled by steps in flight:
        |                    | flight do it  | yet planned    | the worker knows them, we do not

    While decoding with steps in flight, `num_planned` runs past `len(tokens)`: the worker
    computes a promised token from its own memory.
    """

    id: RequestId
    tokens: list[int]  # all that are known: the prompt, then the answer so far
    num_prompt: int
    sampling: Sampling  # with the seed of this choice
    ending: Ending
    gateways: tuple[GatewayId, ...] = ()  # who shows its tokens
    tenant: str = "anonymous"
    priority: int = 0  # smaller is more urgent
    arrival: float = 0.0  # seconds of its leader's clock; no two are equal
    ttft_target: float | None = None  # seconds from its arrival to its first token
    held: bool = False  # a mark on WAITING: stays in line and is passed over

    status: Status = Status.WAITING
    num_computed: int = 0  # tokens with K and V in the cache, by results applied
    num_planned: int = 0  # tokens that plans cover, >= num_computed
    num_promised: int = 0  # tokens sampled by steps in flight
    easy_tokens: int = 0  # next ones that need no block and are not the last, one a step
    block_table: list[BlockId] = field(default_factory=list)
    max_length: int = field(init=False)  # tokens of the prompt and of the longest answer allowed
    max_blocks: int = 0  # that it can ever need, in the pool of its scheduler
    place: Place = ()  # in line, given by its scheduler's policy
    rank: Place = ()  # among rows, given when it is first admitted: the greatest is preempted first
    preemptions: int = 0
    was_admitted: bool = False  # once, by whatever scheduler
    is_returning: bool = False  # preempted on shortage: goes before those who never ran
    row_since: int = NEVER  # the step that started its row; earlier results are of a past life
    host_blocks: list[HostBlockId] = field(default_factory=list)
    num_saved: int = 0  # first tokens whose K and V lie in `host_blocks`
    num_cached: int = 0  # prompt tokens that its first admission found in the prefix cache
    hashes: list[bytes] = field(default_factory=list)  # of its first full blocks, by the cache
    hashed_by: tuple[bytes, int] | None = None  # key and block size of the cache
    hasher: blake2b | None = None  # has taken in what `hashes` stand for
    num_published: int = 0  # blocks of its table that the prefix cache was told of
    publish_at: int = NEVER  # computed tokens from which on there is more to tell it
    num_filling: int = 0  # steps in flight that compute part of it and sample nothing
    finish_reason: FinishReason | None = None
    kept: int | None = None  # output tokens that count; None: all
    error: str = ""

    def __post_init__(self) -> None:
        self.max_length = self.num_prompt + self.ending.max_tokens

    @classmethod
    def from_submit(
        cls, submit: Submit, choice: int, arrival: float, answer: Sequence[int] = ()
    ) -> "Request":
        """One choice of a submission; `answer` is what of it was committed already."""
        prompt = submit.prompts[choice // submit.n]
        return cls(
            id=request_id(submit.submission_id, choice),
            tokens=[*prompt, *answer],
            num_prompt=len(prompt),
            sampling=replace(submit.sampling, seed=choice_seed(submit.sampling.seed, choice)),
            ending=submit.ending,
            gateways=(submit.gateway,),
            tenant=submit.tenant,
            priority=submit.priority,
            arrival=arrival,
            ttft_target=submit.ttft_target_seconds,
            was_admitted=bool(answer),
        )

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens known or promised that no plan covers: one while decoding."""
        return len(self.tokens) + self.num_promised - self.num_planned

    @property
    def in_flight(self) -> int:
        """Steps in flight that name it."""
        return self.num_promised + self.num_filling

    @property
    def is_all_promised(self) -> bool:
        """The last token allowed is known or promised: there is nothing left to plan."""
        return len(self.tokens) + self.num_promised >= self.max_length

    @property
    def own_end(self) -> FinishReason | None:
        """Why the known answer is complete, if it is: its last token, or its length."""
        length = len(self.tokens)
        if length > self.num_prompt and self.tokens[-1] in self.ending.end_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if length >= self.max_length else None

    def move_to(self, status: Status) -> None:
        """Change the state; raises and changes nothing where the table has no such move."""
        if status not in TRANSITIONS[self.status]:
            raise IllegalTransitionError(f"{self.id}: {self.status.name} -> {status.name}")
        self.status = status

    def row_start(self) -> RowStart:
        return RowStart(
            self.id,
            tuple(self.tokens),
            self.num_prompt,
            self.sampling,
            self.ending,
            self.gateways,
            self.num_planned,
        )
