"""Plans made by hand for the shadow worker: what runs, and what it refuses."""

from dataclasses import replace

import pytest

from common.messages import (
    BlockId,
    Chunk,
    Ending,
    HostBlockId,
    RequestId,
    RowStart,
    Sampling,
    StepPlan,
    StepResult,
    Swap,
)
from tests.doubles import ShadowWorker

SIZE = 2  # tokens in a block
PROMPT = (5, 6, 7, 8, 9)
Blocks = tuple[int, ...]


def worker(*, contiguous: bool = False) -> ShadowWorker:
    return ShadowWorker(
        num_blocks=12,
        block_size=SIZE,
        max_rows=3,
        max_step_tokens=8,
        num_host_blocks=4,
        contiguous=contiguous,
    )


def start(
    name: str,
    tokens: tuple[int, ...] = PROMPT,
    num_computed: int = 0,
    num_prompt: int = 0,
    ending: Ending | None = None,
) -> RowStart:
    return RowStart(
        RequestId(name),
        tokens,
        num_prompt or len(tokens),
        Sampling(seed=0),
        ending or Ending(max_tokens=9, end_tokens=(0,)),
        (),
        num_computed,
    )


def chunk(
    row: RowStart, first: int, count: int, blocks: Blocks = (), samples: bool = True
) -> Chunk:
    table = tuple(BlockId(block) for block in blocks)
    return Chunk(row.request_id, first, count, table, samples)


def whole(row: RowStart, blocks: Blocks) -> Chunk:
    """All of it that is not computed."""
    first = row.num_computed
    return chunk(row, first, len(row.tokens) - first, blocks)


def pairs(*of: tuple[int, int]) -> tuple[Swap, ...]:
    return tuple((BlockId(block), HostBlockId(host)) for block, host in of)


class Drive:
    """Loads plans; `run` executes and answers them all."""

    def __init__(self, *, contiguous: bool = False) -> None:
        self.worker = worker(contiguous=contiguous)
        self.step = 0

    def load(self, *chunks: Chunk, **fields: object) -> None:
        self.step += 1
        self.worker.load(StepPlan(self.step, chunks=chunks, **fields))  # type: ignore[arg-type]

    def execute(self, failing: tuple[str, ...] = (), token: int = 3) -> StepResult:
        return self.worker.execute(lambda _request, _position: token, failing)  # type: ignore[arg-type]

    def run(self) -> StepResult:
        while self.worker.num_loaded:
            result = self.execute()
        self.worker.answered(self.step)
        return result

    def do(self, *chunks: Chunk, **fields: object) -> StepResult:
        self.load(*chunks, **fields)
        return self.run()


A, B, C = start("a.0"), start("b.0", (*PROMPT[:4], 1, 2), 4), start("c.0", (4, 3, 2))


def back(row: RowStart, *answer: int) -> RowStart:
    tokens = (*row.tokens, *answer)
    return replace(row, tokens=tokens, num_computed=len(tokens) - 1)


def fails(drive: Drive, text: str, *chunks: Chunk, **fields: object) -> None:
    """The plan passes as such, and shows its fault when it runs."""
    drive.load(*chunks, **fields)
    with pytest.raises(AssertionError, match=text):
        drive.run()


def refused(drive: Drive, text: str, *chunks: Chunk, **fields: object) -> None:
    with pytest.raises(AssertionError, match=text):
        drive.load(*chunks, **fields)


def prepared() -> Drive:
    """The row `a.0` has computed its prompt into the blocks 0, 1 and 2."""
    drive = Drive()
    drive.do(whole(A, (0, 1, 2)), admitted=(A,))
    return drive


def swapped_out(drive: Drive) -> RowStart:
    drive.do(released=("a.0",), swap_out=pairs((0, 0), (1, 1), (2, 2)))
    return back(A, 3)
