"""Stand-ins for parts of the system that check what they are told."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.messages import (
    BlockId,
    Chunk,
    FinishReason,
    GatewayId,
    RequestId,
    RowStart,
    Sampled,
    StepPlan,
    StepResult,
)

Draw = Callable[[RequestId, int], int]  # (request, position in the answer): a token


@dataclass(slots=True, eq=False)
class ShadowRow:
    """A row of the worker: what plans will have made of it, and what steps have made of it."""

    start: RowStart
    tokens: list[int]
    gateways: tuple[GatewayId, ...]
    table: list[BlockId] = field(default_factory=list)
    num_planned: int = 0
    num_length: int = 0  # tokens that it will have when all plans are executed
    ended: bool = False

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.start.num_prompt


@dataclass(frozen=True, slots=True)
class _Loaded:
    plan: StepPlan
    rows: tuple[ShadowRow, ...]  # of its chunks
    touched: frozenset[BlockId]  # what the step may read or write


class ShadowWorker:
    """A worker whose K and V for a token are the token itself, its position and its row.

    `load` takes plans as they are made and checks each against those before; `execute` runs the
    next one, as the real worker does, and checks that it reads what this row wrote; `answered`
    says that the scheduler knows the result. Until then the step's blocks are nobody else's.
    """

    def __init__(
        self, *, num_blocks: int, block_size: int, max_rows: int, max_step_tokens: int
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size  # tokens
        self.max_rows = max_rows
        self.max_step_tokens = max_step_tokens
        self.rows: dict[RequestId, ShadowRow] = {}
        self.slots: dict[tuple[BlockId, int], tuple[ShadowRow, int, int]] = {}
        self._step = 0
        self._loaded: deque[_Loaded] = deque()  # not executed
        self._unanswered: deque[_Loaded] = deque()

    @property
    def num_loaded(self) -> int:
        return len(self._loaded)

    def load(self, plan: StepPlan) -> None:
        assert plan.step == self._step + 1, "a step is missing or comes twice"
        self._step = plan.step
        for request_id in plan.released:
            assert self.rows.pop(request_id, None), f"{request_id} is released and has no row"
        for start in plan.admitted:
            self._start(start)
        for request_id, gateways in plan.gateways:
            self.rows[request_id].gateways = gateways
        assert len(self.rows) <= self.max_rows, "more rows than seats"
        assert plan.num_tokens <= self.max_step_tokens, "more tokens than a step computes"
        ids = [chunk.request_id for chunk in plan.chunks]
        assert len(ids) == len(set(ids)), "two chunks of one request"
        assert {start.request_id for start in plan.admitted} <= set(ids), "a start without a chunk"
        rows = tuple(self._plan(chunk) for chunk in plan.chunks)
        touched = frozenset(block for row in rows for block in row.table)
        loaded = _Loaded(plan, rows, touched)
        self._loaded.append(loaded)
        self._unanswered.append(loaded)

    def execute(self, draw: Draw, failing: Sequence[RequestId] = ()) -> StepResult:
        """Run the next plan. Rows in `failing` end with an error, if they take part."""
        loaded = self._loaded.popleft()
        sampled: list[Sampled] = []
        errors: dict[RequestId, str] = {}
        for row, chunk in zip(loaded.rows, loaded.plan.chunks, strict=True):
            if row.ended:
                continue
            if chunk.request_id in failing:
                errors[chunk.request_id] = "broken"
                row.ended = True
                continue
            self._compute(row, chunk)
            if chunk.samples:
                sampled.append(_sample(row, draw))
        return StepResult(loaded.plan.step, tuple(sampled), 0.0, errors)

    def answered(self, step: int) -> None:
        while self._unanswered and self._unanswered[0].plan.step <= step:
            self._unanswered.popleft()

    def _start(self, start: RowStart) -> None:
        assert start.request_id not in self.rows, f"{start.request_id} starts and has a row"
        assert 0 < start.num_prompt <= len(start.tokens)
        self.rows[start.request_id] = ShadowRow(
            start, list(start.tokens), start.gateways, num_length=len(start.tokens)
        )

    def _plan(self, chunk: Chunk) -> ShadowRow:
        assert chunk.request_id in self.rows, f"{chunk.request_id} has a chunk and no row"
        row = self.rows[chunk.request_id]
        for block in chunk.new_blocks:
            self._check_new(block)
        row.table += chunk.new_blocks
        stop = chunk.start + chunk.count
        assert chunk.count > 0
        assert chunk.start == row.num_planned, "a chunk starts where none ended"
        assert stop <= row.num_length, "a chunk of tokens that nobody knows"
        assert stop <= len(row.table) * self.block_size, "a chunk without blocks"
        assert chunk.samples == (stop == row.num_length)
        row.num_planned = stop
        row.num_length += chunk.samples
        most = row.start.num_prompt + row.start.ending.max_tokens
        assert row.num_length <= most, "sampled beyond the last token allowed"
        return row

    def _check_new(self, block: BlockId) -> None:
        assert 0 <= block < self.num_blocks
        for row in self.rows.values():
            assert block not in row.table, f"block {block} has an owner"
        for loaded in self._unanswered:
            assert block not in loaded.touched, f"block {block} is in use by a step in flight"

    def _compute(self, row: ShadowRow, chunk: Chunk) -> None:
        stop = chunk.start + chunk.count
        for position in range(chunk.start, stop):
            self.slots[self._slot(row, position)] = (row, position, row.tokens[position])
        for position in range(stop):
            slot = self.slots.get(self._slot(row, position))
            assert slot == (row, position, row.tokens[position]), f"reads {slot} at {position}"

    def _slot(self, row: ShadowRow, position: int) -> tuple[BlockId, int]:
        index, offset = divmod(position, self.block_size)
        return row.table[index], offset


def _sample(row: ShadowRow, draw: Draw) -> Sampled:
    request_id, ending, position = row.start.request_id, row.start.ending, row.num_output
    token = draw(request_id, position)
    row.tokens.append(token)
    finish = None
    if token in ending.end_tokens:
        finish = FinishReason.STOP
    elif position + 1 == ending.max_tokens:
        finish = FinishReason.LENGTH
    row.ended = finish is not None
    return Sampled(request_id, position, token, finish)
