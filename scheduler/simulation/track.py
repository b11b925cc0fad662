"""One request as the simulator follows it: what will become of it, and what has so far."""

from dataclasses import dataclass, field

from common.messages import BlockId, Chunk, RequestId, Sampled

NEVER = -1  # a step's number


@dataclass(slots=True, eq=False)
class Track:
    id: RequestId
    tenant: str
    arrival: float  # seconds
    num_prompt: int
    num_answer: int  # tokens that its answer will have; the scheduler need not know
    token: int  # all of its answer, but for the last one where that ends it
    ends_itself: bool = False  # by an end token, before its max_tokens

    num_output: int = 0
    first_at: float = 0.0  # when its first token came
    last_step: int = NEVER  # that gave it a token
    last_chunk: Chunk | None = None  # of its row
    blocks: list[BlockId] = field(default_factory=list)  # of its row
    num_useless: int = 0  # slots of these that will never hold a token
    num_cached: int = 0  # tokens of the prompt that the prefix cache had at its first admission
    was_admitted: bool = False
    is_swapped: bool = False
    preemptions: int = 0
    # Its newest token: one object for all, since making one costs more than the rest of a row's
    # part in a step. The scheduler keeps none once a result is applied.
    sampled: Sampled = field(init=False)

    def __post_init__(self) -> None:
        self.sampled = Sampled(self.id, NEVER, self.token)

    @property
    def num_stored(self) -> int:
        """Tokens whose K and V are in its blocks."""
        chunk = self.last_chunk
        return chunk.start + chunk.count if chunk else 0

    @property
    def most_stored(self) -> int:
        """The last token of an answer is never stored."""
        return self.num_prompt + self.num_answer - 1

    @property
    def is_over(self) -> bool:
        return self.num_output >= self.num_answer
