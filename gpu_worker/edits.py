"""Penalties, biases and bans of the rows of a step, gathered for the sampler.

Axes: R rows that sample, K penalised logits, A additions. `kernels/edit_logits.py` says what is
done with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gpu_worker.rows import Row

Array = npt.NDArray[Any]
A = TypeVar("A")


@dataclass(frozen=True)
class Edits(Generic[A]):
    """Changes of single logits, sparse: what no row asked for costs nothing.

    Arrays of numpy on the host, of torch on a device.
    """

    penalised_starts: A  # [R + 1] int32
    penalised: A  # [K] int32 tokens, each once a row
    counts: A  # [K] int32 times in the answer, promised tokens not among them
    repetition: A  # [R] float32
    presence: A  # [R] float32
    frequency: A  # [R] float32
    added_starts: A  # [R + 1] int32
    added: A  # [A] int32 tokens, which may repeat
    addend: A  # [A] float32 bias, or -inf for a ban


def collect(rows: Sequence[Row], positions: npt.NDArray[np.int64]) -> Edits[Array] | None:
    """The edits of rows [R] that sample at `positions` [R]; None if there are none."""
    if not any(row.edits_logits for row in rows):
        return None
    counts = [row.counts for row in rows]
    additions = [_additions(*each) for each in zip(rows, positions.tolist(), strict=True)]
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
    if position >= row.ending.min_tokens:
        return list(row.sampling.logit_bias)
    return [*row.sampling.logit_bias, *((token, -np.inf) for token in row.end_tokens)]


def _starts(lengths: list[int]) -> Array:
    return np.array([0, *accumulate(lengths)], np.int32)


def _joined(parts: list[npt.NDArray[np.int32]]) -> Array:
    return np.concatenate(parts or [np.zeros(0, np.int32)])
