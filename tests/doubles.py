"""Stand-ins for parts of the system that check what they are told."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.messages import (
    BlockId,
    Chunk,
    FinishReason,
    GatewayId,
    HostBlockId,
    RequestId,
    RowStart,
    Sampled,
    StepPlan,
    StepResult,
)

Draw = Callable[[RequestId, int], int]  # (request, position in the answer): a token
Content = tuple[int, int]  # (position, hash of all tokens up to it): all that K and V depend on
Slots = dict[int, Content]  # of one block, by offset


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
    hashes: list[int] = field(default_factory=list)  # of its first tokens, up to each

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.start.num_prompt

    def content(self, position: int) -> Content:
        """What the slot of `position` holds once it is computed, by whatever row."""
        while (known := len(self.hashes)) <= position:
            before = self.hashes[-1] if known else 0
            self.hashes.append(hash((before, self.tokens[known])))
        return position, self.hashes[position]


@dataclass(frozen=True, slots=True)
class _Loaded:
    plan: StepPlan
    rows: tuple[ShadowRow, ...]  # of its chunks
    tables: tuple[frozenset[BlockId], ...]  # of them, when the plan came: what the step may touch

    def touches(self, block: BlockId, *, but_for: ShadowRow | None) -> bool:
        pairs = zip(self.rows, self.tables, strict=True)
        return any(block in table for row, table in pairs if row is not but_for)


class ShadowWorker:
    """A worker whose K and V for a token are its position and a hash of all tokens up to it.

    `load` takes plans as they are made and checks each against those before; `execute` runs the
    next one, as the real worker does, and checks that each row reads what it, or another row with
    the same prefix, wrote at this position, wherever it was copied meanwhile; `answered` says that
    the scheduler knows the result. Until then nobody else writes what the step may touch.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_rows: int,
        max_step_tokens: int,
        num_host_blocks: int = 0,
        contiguous: bool = False,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size  # tokens
        self.max_rows = max_rows
        self.max_step_tokens = max_step_tokens
        self.num_host_blocks = num_host_blocks
        self.contiguous = contiguous  # each row's table is one range
        self.rows: dict[RequestId, ShadowRow] = {}
        self.memory: dict[BlockId, Slots] = {}
        self.host: dict[HostBlockId, Slots] = {}
        self._swapped: set[HostBlockId] = set()  # by plans that came; `host` follows
        self._step = 0
        self._loaded: deque[_Loaded] = deque()  # not executed
        self._unanswered: deque[_Loaded] = deque()

    @property
    def num_loaded(self) -> int:
        return len(self._loaded)

    # --- Plans come ---------------------------------------------------------------------------

    def load(self, plan: StepPlan) -> None:
        assert plan.step == self._step + 1, "a step is missing or comes twice"
        self._step = plan.step
        for request_id in plan.released:
            assert self.rows.pop(request_id, None), f"{request_id} is released and has no row"
        self._check_swaps(plan)
        for start in plan.admitted:
            self._start(start)
        for request_id, gateways in plan.gateways:
            self.rows[request_id].gateways = gateways
        assert len(self.rows) <= self.max_rows, "more rows than seats"
        assert plan.num_tokens <= self.max_step_tokens, "more tokens than a step computes"
        ids = [chunk.request_id for chunk in plan.chunks]
        assert len(ids) == len(set(ids)), "two chunks of one request"
        started = {start.request_id for start in plan.admitted}
        assert started <= set(ids), "a start without a chunk"
        rows = tuple(self._plan(chunk) for chunk in plan.chunks)
        tables = {block for request in started for block in self.rows[request].table}
        assert {block for block, _ in plan.swap_in} <= tables, "a block is swapped in for nobody"
        loaded = _Loaded(plan, rows, tuple(frozenset(row.table) for row in rows))
        self._loaded.append(loaded)
        self._unanswered.append(loaded)

    def answered(self, step: int) -> None:
        while self._unanswered and self._unanswered[0].plan.step <= step:
            self._unanswered.popleft()

    def _check_swaps(self, plan: StepPlan) -> None:
        for block, host_block in (*plan.swap_out, *plan.swap_in):
            assert 0 <= block < self.num_blocks, f"there is no block {block}"
            assert 0 <= host_block < self.num_host_blocks, f"there is no host block {host_block}"
        out = [host_block for _, host_block in plan.swap_out]
        assert len(out) == len(set(out)), "two blocks are swapped out into one"
        self._swapped.update(out)
        into = [block for block, _ in plan.swap_in]
        assert len(into) == len(set(into)), "two host blocks are swapped in into one"
        for block, host_block in plan.swap_in:
            assert host_block in self._swapped, f"nothing was swapped out into {host_block}"
            self._check_free(block)

    def _start(self, start: RowStart) -> None:
        assert start.request_id not in self.rows, f"{start.request_id} starts and has a row"
        assert 0 < start.num_prompt <= len(start.tokens), "no such prompt"
        assert 0 <= start.num_computed < len(start.tokens), "a start with nothing to compute"
        self.rows[start.request_id] = ShadowRow(
            start,
            list(start.tokens),
            start.gateways,
            num_planned=start.num_computed,
            num_length=len(start.tokens),
        )

    def _plan(self, chunk: Chunk) -> ShadowRow:
        assert chunk.request_id in self.rows, f"{chunk.request_id} has a chunk and no row"
        row = self.rows[chunk.request_id]
        self._append(row, chunk.new_blocks)
        stop = chunk.start + chunk.count
        assert chunk.count > 0, "a chunk of nothing"
        assert chunk.start == row.num_planned, "a chunk starts where none ended"
        assert stop <= row.num_length, "a chunk of tokens that nobody knows"
        assert stop <= len(row.table) * self.block_size, "a chunk without blocks"
        assert chunk.samples == (stop == row.num_length), "samples elsewhere than at the end"
        for block in row.table[chunk.start // self.block_size : -(-stop // self.block_size)]:
            self._check_free(block, row)
        row.num_planned = stop
        row.num_length += chunk.samples
        most = row.start.num_prompt + row.start.ending.max_tokens
        assert row.num_length <= most, "sampled beyond the last token allowed"
        return row

    def _append(self, row: ShadowRow, blocks: Sequence[BlockId]) -> None:
        """Full blocks of computed tokens may be others' too; the rest it will write into."""
        num_full = row.start.num_computed // self.block_size
        for block in blocks:
            assert 0 <= block < self.num_blocks, f"there is no block {block}"
            assert block not in row.table, f"block {block} is there twice"
            if self.contiguous and row.table:
                assert block == row.table[-1] + 1, "the table is no range"
            if len(row.table) >= num_full:
                self._check_free(block, row)
            row.table.append(block)

    def _check_free(self, block: BlockId, writer: ShadowRow | None = None) -> None:
        """Nobody but the writer has it, nor may any step touch it that is not answered yet."""
        for row in self.rows.values():
            assert row is writer or block not in row.table, f"block {block} has an owner"
        for loaded in self._unanswered:
            in_use = loaded.touches(block, but_for=writer)
            assert not in_use, f"block {block} is in use by a step in flight"

    # --- Steps run ----------------------------------------------------------------------------

    def execute(self, draw: Draw, failing: Sequence[RequestId] = ()) -> StepResult:
        """Run the next plan. Rows in `failing` end with an error, if they take part."""
        loaded = self._loaded.popleft()
        self._swap(loaded.plan)
        errors: dict[RequestId, str] = {}
        running: list[tuple[ShadowRow, Chunk]] = []
        for row, chunk in zip(loaded.rows, loaded.plan.chunks, strict=True):
            if row.ended:
                continue
            if chunk.request_id in failing:
                errors[chunk.request_id] = "broken"
                row.ended = True
                continue
            running.append((row, chunk))
        self._compute(running)
        sampled = tuple(_sample(row, draw) for row, chunk in running if chunk.samples)
        return StepResult(loaded.plan.step, sampled, 0.0, errors)

    def _swap(self, plan: StepPlan) -> None:
        for block, host_block in plan.swap_out:
            self.host[host_block] = dict(self.memory.get(block, {}))  # empty if its row failed
        for block, host_block in plan.swap_in:
            self.memory[block] = dict(self.host[host_block])

    def _compute(self, running: Sequence[tuple[ShadowRow, Chunk]]) -> None:
        """All rows at once: nobody reads what another one computes in the same step."""
        for row, chunk in running:
            self._check_reads(row, chunk.start)
        for row, chunk in running:
            for position in range(chunk.start, chunk.start + chunk.count):
                block, offset = self._slot(row, position)
                self.memory.setdefault(block, {})[offset] = row.content(position)

    def _check_reads(self, row: ShadowRow, stop: int) -> None:
        """What was computed before; the chunk's own slots are the row's alone."""
        for position in range(stop):
            block, offset = self._slot(row, position)
            found = self.memory.get(block, {}).get(offset)
            expected = row.content(position)
            assert found == expected, f"{row.start.request_id} reads {found}, not {expected}"

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
