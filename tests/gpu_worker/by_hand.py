"""Drives an engine with plans made by hand, for what a scheduler may do and seldom does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from common.messages import (
    BlockId,
    Chunk,
    Ending,
    HostBlockId,
    RequestId,
    RowStart,
    Sampled,
    Sampling,
    StepPlan,
    StepResult,
    Swap,
)
from gpu_worker.llama import Llama
from gpu_worker.model_engine import ModelEngine
from tests.gpu_worker.tiny import VOCAB, make_engine


@dataclass
class Hand:
    """Counts steps, and keeps what was sampled for each row."""

    engine: ModelEngine
    step: int = 0
    answers: dict[RequestId, list[Sampled]] = field(default_factory=dict)

    def execute(
        self,
        *chunks: Chunk,
        released: Sequence[RequestId] = (),
        admitted: Sequence[RowStart] = (),
        swap_out: Sequence[Swap] = (),
        swap_in: Sequence[Swap] = (),
    ) -> StepResult:
        self.step += 1
        plan = StepPlan(
            self.step,
            released=tuple(released),
            admitted=tuple(admitted),
            chunks=chunks,
            swap_out=tuple(swap_out),
            swap_in=tuple(swap_in),
        )
        result = self.engine.execute(plan)
        assert result.errors == {}
        for sampled in result.sampled:
            self.answers.setdefault(sampled.request_id, []).append(sampled)
        return result

    def answer(self, row: RowStart) -> list[int]:
        """The tokens; checks that their positions have no gap."""
        sampled = self.answers[row.request_id]
        assert [each.position for each in sampled] == list(range(len(sampled)))
        return [each.token for each in sampled]

    def decode(self, *rows: RowStart) -> None:
        """One more token of each; their blocks are there."""
        chunks = []
        for row in rows:
            known = row.num_prompt + len(self.answers[row.request_id])
            chunks.append(Chunk(row.request_id, known - 1, 1, (), samples=True))
        self.execute(*chunks)

    def plain(self, row: RowStart, count: int) -> list[int]:
        """`count` tokens of a row that is alone, from its prompt on."""
        table = blocks(0, self.blocks_for(len(row.tokens) + count))
        chunk = Chunk(row.request_id, 0, len(row.tokens), table, samples=True)
        self.execute(chunk, admitted=[row])
        for _ in range(count - 1):
            self.decode(row)
        return self.answer(row)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.engine.capacity.block_size)


def start(
    name: str,
    tokens: Sequence[int],
    sampling: Sampling,
    ending: Ending | None = None,
    num_computed: int = 0,
) -> RowStart:
    ending = ending or Ending(max_tokens=100)
    return RowStart(RequestId(name), tuple(tokens), len(tokens), sampling, ending, (), num_computed)


def blocks(first: int, count: int) -> tuple[BlockId, ...]:
    return tuple(BlockId(block) for block in range(first, first + count))


def swaps(device: Sequence[int], host: Sequence[int]) -> list[Swap]:
    return [(BlockId(a), HostBlockId(b)) for a, b in zip(device, host, strict=True)]


def numbers(seed: int, count: int, below: int) -> Iterator[int]:
    """Some numbers in [0, below) that look random."""
    state = seed * 2654435761 + 12345
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        yield (state >> 33) % below


HOST_BLOCKS = 16
PROMPT = tuple(numbers(1, 21, VOCAB))
OTHER = tuple(numbers(2, 40, VOCAB))


def make_hand(model: Llama) -> Hand:
    return Hand(make_engine(model, num_blocks=40, num_host_blocks=HOST_BLOCKS))


def fill(hand: Hand, name: str, first: int, count: int) -> RowStart:
    """Another row, whose prompt overwrites `count` blocks from `first` on."""
    row = start(name, OTHER[: 8 * count], Sampling(seed=0, temperature=0.0))
    chunk = Chunk(row.request_id, 0, len(row.tokens), blocks(first, count), samples=False)
    hand.execute(replace(chunk, samples=True), admitted=[row])
    return row
