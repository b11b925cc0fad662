"""Logits to tokens on the host, each row by itself: a function of its logits, seed and position.

Axes: S rows that sample, V vocabulary, K penalised logits. `device_sampler.py` does it on a device.

In this order, as vLLM has it but for the first two, which it swaps with the third:

1. repetition penalty, on every token of prompt and answer: positive logits are divided by it,
   negative ones multiplied
2. presence and frequency penalties, on the tokens of the answer: subtracted once, and for each time
3. logit bias, added; and end tokens banned before `min_tokens`
4. temperature 0: the largest logit, of equal ones the first; else logits / temperature
5. min_p, top_k, top_p (see `kernels/sample.py`)
6. the draw: one uniform number, made from seed and position by a hash, inverts the distribution
   in order of token id. No state: whoever shares the batch, on whatever worker, it is the same.

A row whose logits are not finite, or all banned, fails alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.draw_rows import draw_rows
from gpu_worker.edits import Array, Edits

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SamplingColumns:
    """How S rows are sampled, one array a field."""

    seed: npt.NDArray[np.uint64]  # [S]
    position: Ints  # [S] in the answer
    temperature: Floats  # [S]
    top_k: Ints  # [S]
    top_p: Floats  # [S]
    min_p: Floats  # [S]
    edits: Edits[Array] | None = None


@torch.inference_mode()
def sample(logits: Tensor, columns: SamplingColumns) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The next token of each row [S], and which rows failed [S]. `logits` [S, V] is overwritten."""
    if columns.edits:
        _edit(logits, columns.edits)
    draws = columns.temperature > 0
    if not draws.any():
        return _most_likely(logits.numpy())
    largest = logits.amax(-1).numpy()  # [S]; NaN if there is one in the row
    failed = ~np.isfinite(largest)
    tokens = np.zeros(len(failed), np.int64)
    values = logits.numpy()
    if not draws.all():
        tokens[~draws] = values[~draws].argmax(-1)
    if (drawn := np.flatnonzero(draws & ~failed)).size:
        if len(drawn) < len(tokens):
            values, largest = values[drawn], largest[drawn]
        tokens[drawn] = _draw(values, largest, columns, drawn)
    return tokens, failed


def uniforms(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """[0, 1) for each seed and position: splitmix64, its start scattered by the seed."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    mixed = _mix(seeds + golden) + golden * (positions.astype(np.uint64) + np.uint64(1))
    return (_mix(mixed) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _edit(logits: Tensor, edits: Edits[Array]) -> None:
    """What `edit_logits` does, where no token is promised."""
    if len(edits.penalised):
        lengths = np.diff(edits.penalised_starts)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        places = torch.from_numpy(rows), torch.from_numpy(edits.penalised.astype(np.int64))
        values, repetition = logits[places], torch.from_numpy(edits.repetition[rows])
        values = torch.where(values > 0, values / repetition, values * repetition)
        presence = edits.presence[rows].astype(np.float64) * (edits.counts > 0)
        subtracted = presence + edits.frequency[rows].astype(np.float64) * edits.counts
        logits[places] = values - torch.from_numpy(subtracted.astype(np.float32))
    if len(edits.addend):
        rows = np.repeat(np.arange(len(logits)), np.diff(edits.added_starts))
        places = torch.from_numpy(rows), torch.from_numpy(edits.added.astype(np.int64))
        logits.index_put_(places, torch.from_numpy(edits.addend), accumulate=True)


def _most_likely(logits: Floats) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """As `sample`, where no row draws: a NaN counts as the largest, so one pass shows it too.

    numpy's argmax is ten times as fast as torch's on a CPU.
    """
    tokens: Ints = logits.argmax(-1)
    return tokens, ~np.isfinite(logits[np.arange(len(tokens)), tokens])


def _draw(logits: Floats, largest: Floats, columns: SamplingColumns, rows: Ints) -> Ints:
    """Draw for the rows `rows` of the columns, whose logits and largest ones are given."""
    return draw_rows(
        logits,
        largest,
        columns.temperature[rows],
        columns.top_k[rows],
        columns.top_p[rows],
        columns.min_p[rows],
        uniforms(columns.seed[rows], columns.position[rows]),
    )
