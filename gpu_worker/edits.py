"""Penalties, biases and bans of the rows of a step, gathered for the sampler.

Axes: R rows that sample, K penalised logits, A additions. `kernels/edit_logits.py` says what is
done with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from gpu_worker.rows import Row

Floats = npt.NDArray[np.float32]
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Edits:
    """Changes of single logits, sparse: what no row asked for costs nothing."""

    penalised_starts: Int32s  # [R + 1]
    penalised: Int32s  # [K] tokens, each once a row
    counts: Int32s  # [K] times in the answer, promised tokens not among them
    repetition: Floats  # [R]
    presence: Floats  # [R]
    frequency: Floats  # [R]
    added_starts: Int32s  # [R + 1]
    added: Int32s  # [A] tokens, which may repeat
    addend: Floats  # [A] bias, or -inf for a ban


def collect(rows: Sequence[Row], positions: npt.NDArray[np.int64]) -> Edits | None:
    """The edits of rows [R] that sample at `positions` [R]; None if there are none."""
    if not any(row.edits_logits for row in rows):
        return None
    counts = [row.counts for row in rows]
    additions = [_additions(row, positions[place]) for place, row in enumerate(rows)]
    return Edits(
        penalised_starts=_starts([len(each.tokens) if each else 0 for each in counts]),
        penalised=_joined([each.tokens for each in counts if each]),
        counts=_joined([each.counts for each in counts if each]),
        repetition=np.array([row.sampling.repetition_penalty for row in rows], np.float32),
        presence=np.array([row.sampling.presence_penalty for row in rows], np.float32),
        frequency=np.array([row.sampling.frequency_penalty for row in rows], np.float32),
        added_starts=_starts([len(each) for each in additions]),
        added=np.array([token for each in additions for token, _ in each], np.int32),
        addend=np.array([addend for each in additions for _, addend in each], np.float32),
    )


def _additions(row: Row, position: int) -> list[tuple[int, float]]:
    """(token, what is added to its logit)."""
    bans = row.end_tokens if position < row.ending.min_tokens else ()
    return [*row.sampling.logit_bias, *((token, -np.inf) for token in bans)]


def _starts(lengths: list[int]) -> Int32s:
    return np.array([0, *accumulate(lengths)], np.int32)


def _joined(parts: list[npt.NDArray[np.int64]]) -> Int32s:
    return np.concatenate(parts or [np.zeros(0, np.int64)]).astype(np.int32)
