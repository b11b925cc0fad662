"""A plan and the rows that it names, as the tensors of one forward pass and of its sampling.

Axes: S sequences, N tokens of the step, R rows that sample, T width of a block table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from common.messages import Chunk
from gpu_worker.edits import collect
from gpu_worker.engine import EngineError
from gpu_worker.llama import Inputs
from gpu_worker.rows import Row, Rows
from gpu_worker.sampler import SamplingColumns

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """What one step computes."""

    inputs: Inputs
    sampling: list[Row]  # [R] in the order of `inputs.last`
    columns: SamplingColumns  # of the rows in `sampling`
    index: Ints  # [S] of the rows
    lengths: Ints  # [S] tokens that each row has computed after the step


def build(
    rows: Rows, chunks: Sequence[tuple[Row, Chunk]], block_size: int, device: torch.device
) -> Batch:
    """The batch of `chunks`, whose rows have their blocks already. At least one chunk."""
    index = np.fromiter((row.index for row, _ in chunks), np.int64, len(chunks))  # [S]
    starts = np.fromiter((chunk.start for _, chunk in chunks), np.int64, len(chunks))
    counts = np.fromiter((chunk.count for _, chunk in chunks), np.int64, len(chunks))
    samples = np.fromiter((chunk.samples for _, chunk in chunks), np.bool_, len(chunks))
    lengths = starts + counts
    _check(rows, index, starts, counts, samples, block_size)
    cu_seqlens = np.zeros(len(chunks) + 1, np.int64)
    np.cumsum(counts, out=cu_seqlens[1:])

    row_of_token = np.repeat(index, counts)  # [N]
    positions = np.arange(len(row_of_token)) + np.repeat(starts - cu_seqlens[:-1], counts)
    blocks = rows.blocks[row_of_token, positions // block_size]
    width = -(-int(lengths.max()) // block_size)

    def tensor(array: npt.NDArray[np.generic], dtype: type[np.generic] = np.int32) -> torch.Tensor:
        return torch.from_numpy(array.astype(dtype, copy=False)).to(device)

    inputs = Inputs(
        tokens=tensor(rows.tokens[row_of_token, positions]),
        positions=tensor(positions),
        slot_mapping=tensor(blocks * np.int64(block_size) + positions % block_size, np.int64),
        block_tables=tensor(rows.blocks[index, :width]),
        cu_seqlens=tensor(cu_seqlens),
        lengths=tensor(lengths),
        last=tensor(cu_seqlens[1:][samples] - 1, np.int64),
    )
    sampling = [row for row, chunk in chunks if chunk.samples]
    columns = _columns(rows, sampling, index[samples])
    return Batch(inputs, sampling, columns, index, lengths)


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


def _columns(rows: Rows, sampling: list[Row], index: Ints) -> SamplingColumns:
    position = rows.num_tokens[index] - rows.num_prompt[index]
    return SamplingColumns(
        seed=rows.seed[index],
        position=position,
        temperature=rows.temperature[index],
        top_k=rows.top_k[index],
        top_p=rows.top_p[index],
        min_p=rows.min_p[index],
        edits=collect(sampling, position),
    )
