"""A plan and the rows that it names, as the arrays of one forward pass and of its sampling.

Axes: S sequences, N tokens of the step, R rows that sample, T width of a block table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.messages import Chunk
from gpu_worker.edits import Edits, collect
from gpu_worker.engine import EngineError
from gpu_worker.fields import Array, Fields, Shape, host_fields, num_bytes
from gpu_worker.rows import PROMISED, Row, Rows

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """What one step computes: numbers by sequence, from which `fill` makes those by token."""

    rows: Rows
    block_size: int
    index: Ints  # [S] of the rows
    sampled_index: Ints  # [R] of those that sample
    starts: Ints  # [S] tokens that each row has computed before the step
    counts: Ints  # [S] that the step computes
    lengths: Ints  # [S] that each row has computed after it
    samples: npt.NDArray[np.bool_]  # [S]
    sampling: list[Row]  # [R]
    position: Ints  # [R] in the answer, of the token that is drawn
    edits: Edits[Array] | None  # of the rows in `sampling`

    @property
    def shape(self) -> Shape:
        """The least that holds it."""
        width = -(-int(self.lengths.max()) // self.block_size)
        return Shape(int(self.counts.sum()), len(self.index), len(self.sampling), width)

    def fields(self) -> Fields[Array]:
        """All arrays, without padding, in memory of their own."""
        shape = self.shape
        fields = host_fields(np.empty(num_bytes(shape), np.uint8), shape)
        self.fill(fields)
        return fields

    def fill(self, fields: Fields[Array]) -> None:
        """Write all arrays. N, S and T may be larger than `shape` says: the rest is padding."""
        self._fill_tokens(fields)
        self._fill_sequences(fields)
        self._fill_sampling(fields)

    def _fill_tokens(self, fields: Fields[Array]) -> None:
        rows, size = self.rows, self.block_size
        row = np.repeat(self.index, self.counts)  # [N]
        num_tokens = len(row)
        before = np.cumsum(self.counts) - self.counts  # [S] tokens of the step before each
        position = np.arange(num_tokens) + np.repeat(self.starts - before, self.counts)
        tokens = rows.tokens[row, position]
        block = rows.blocks[row, position // size].astype(np.int64)
        _put(fields.tokens, tokens, 0)
        _put(fields.source, np.where(tokens == PROMISED, row, -1), -1)
        _put(fields.positions, position, 0)
        _put(fields.slot_mapping, block * size + position % size, -1)

    def _fill_sequences(self, fields: Fields[Array]) -> None:
        """Sequences of padding have neither rows nor tokens."""
        fields.cu_seqlens[0] = 0
        bounds = np.cumsum(self.counts)
        _put(fields.cu_seqlens[1:], bounds, bounds[-1])
        _put(fields.lengths, self.lengths, 0)
        width = fields.block_tables.shape[1]
        _put(fields.block_tables, self.rows.blocks[self.index, :width], 0)
        fields.last[:] = bounds[self.samples] - 1

    def _fill_sampling(self, fields: Fields[Array]) -> None:
        rows, index = self.rows, self.sampled_index
        fields.seed[:] = rows.seed[index].view(np.int64)
        fields.position[:] = self.position
        fields.temperature[:] = rows.temperature[index]
        fields.top_k[:] = rows.top_k[index]
        fields.top_p[:] = rows.top_p[index]
        fields.min_p[:] = rows.min_p[index]
        fields.row[:] = index
        is_promised = rows.tokens[index, rows.num_tokens[index] - 1] == PROMISED
        fields.newest[:] = np.where(is_promised, index, -1)


def build(rows: Rows, chunks: Sequence[tuple[Row, Chunk]], block_size: int) -> Batch:
    """The batch of `chunks`, whose rows have their blocks already. At least one chunk."""
    index = np.fromiter((row.index for row, _ in chunks), np.int64, len(chunks))  # [S]
    starts = np.fromiter((chunk.start for _, chunk in chunks), np.int64, len(chunks))
    counts = np.fromiter((chunk.count for _, chunk in chunks), np.int64, len(chunks))
    samples = np.fromiter((chunk.samples for _, chunk in chunks), np.bool_, len(chunks))
    _check(rows, index, starts, counts, samples, block_size)
    sampling = [row for row, chunk in chunks if chunk.samples]
    sampled_index = index[samples]
    position = rows.num_tokens[sampled_index] - rows.num_prompt[sampled_index]
    return Batch(
        rows=rows,
        block_size=block_size,
        index=index,
        sampled_index=sampled_index,
        starts=starts,
        counts=counts,
        lengths=starts + counts,
        samples=samples,
        sampling=sampling,
        position=position,
        edits=collect(sampling, position),
    )


def _put(target: Array, values: Array, padding: int) -> None:
    target[: len(values)] = values
    target[len(values) :] = padding


def _check(
    rows: Rows,
    index: Ints,
    starts: Ints,
    counts: Ints,
    samples: npt.NDArray[np.bool_],
    block_size: int,
) -> None:
    """A plan that contradicts the rows would read or write what belongs to others."""
    known, lengths = rows.num_tokens[index], starts + counts
    wrong = (counts < 1) | (lengths > known) | (samples & (lengths != known))
    if wrong.any():
        raise EngineError(f"the plan computes tokens that rows have not: {wrong.nonzero()[0]}")
    if (starts != rows.num_computed[index]).any():
        raise EngineError("the plan starts chunks elsewhere than behind what is computed")
    if (lengths > rows.num_blocks[index] * block_size).any():
        raise EngineError("the plan computes tokens that have no block")
