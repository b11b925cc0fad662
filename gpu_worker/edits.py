"""Penalties, biases and bans of the rows of a step, gathered for the sampler."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu_worker.rows import Row, TokenCounts
from gpu_worker.sampler import Edits

Array = npt.NDArray[np.generic]


def collect(rows: Sequence[Row], positions: npt.NDArray[np.int64]) -> Edits | None:
    """The edits of rows [R] that sample at `positions` [R]; None if there are none."""
    penalties: list[tuple[Array, ...]] = []  # (rows, tokens, repetition, subtracted) [K] each
    additions: list[tuple[int, int, float]] = []  # (row, token, addend)
    for place, row in enumerate(rows):
        if not row.edits_logits:
            continue
        if row.counts:
            penalties.append(_penalties(place, row, row.counts))
        additions += [(place, token, bias) for token, bias in row.sampling.logit_bias]
        if positions[place] < row.ending.min_tokens:
            additions += [(place, token, -np.inf) for token in row.end_tokens]
    if not penalties and not additions:
        return None
    row_places, tokens, repetition, subtracted = _columns(penalties)
    added = np.array(additions, np.float64).reshape(-1, 3)
    return Edits(
        penalised=(row_places.astype(np.int64), tokens.astype(np.int64)),
        repetition=repetition.astype(np.float32),
        subtracted=subtracted.astype(np.float32),
        added=(added[:, 0].astype(np.int64), added[:, 1].astype(np.int64)),
        addend=added[:, 2].astype(np.float32),
    )


def _penalties(place: int, row: Row, counts: TokenCounts) -> tuple[Array, ...]:
    sampling = row.sampling
    tokens, times = counts.tokens, counts.counts
    # Rounded as a device holds them, then summed in float64, as `kernels/edit_logits.py` does.
    presence = float(np.float32(sampling.presence_penalty))
    frequency = float(np.float32(sampling.frequency_penalty))
    subtracted = presence * (times > 0) + frequency * times
    repetition = np.full(len(tokens), sampling.repetition_penalty)
    return np.full(len(tokens), place), tokens, repetition, subtracted


def _columns(penalties: list[tuple[Array, ...]]) -> list[Array]:
    if not penalties:
        return [np.zeros(0)] * 4
    return [np.concatenate(column) for column in zip(*penalties, strict=True)]
