"""Logits to tokens, each row by itself: a function of its logits, its seed and its position.

Axes: S rows that sample, V vocabulary, K edits of single logits.

In this order, as vLLM has it but for the first two, which it swaps with the third:

1. repetition penalty, on every token of prompt and answer: positive logits are divided by it,
   negative ones multiplied
2. presence and frequency penalties, on the tokens of the answer: subtracted once, and for each time
3. logit bias, added; and end tokens banned before `min_tokens`
4. temperature 0: the largest logit, of equal ones the first; else logits / temperature
5. min_p, top_k, top_p (see `draw_batch`)
6. the draw: one uniform number, made from seed and position by a hash, inverts the distribution
   in order of token id. No state: whoever shares the batch, on whatever worker, it is the same.

A row whose logits are not finite, or all banned, fails alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.draw_batch import draw_batch
from gpu_worker.draw_rows import draw_rows

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Edits:
    """Changes of single logits, sparse: what no row asked for costs nothing."""

    penalised: tuple[Ints, Ints]  # [K] rows, [K] tokens; each pair once
    repetition: Floats  # [K]
    subtracted: Floats  # [K] by presence and frequency
    added: tuple[Ints, Ints]  # [K'] rows, [K'] tokens; pairs may repeat
    addend: Floats  # [K'] bias, or -inf for a ban


@dataclass(frozen=True)
class SamplingColumns:
    """How S rows are sampled, one array a field."""

    seed: npt.NDArray[np.uint64]  # [S]
    position: Ints  # [S] in the answer
    temperature: Floats  # [S]
    top_k: Ints  # [S]
    top_p: Floats  # [S]
    min_p: Floats  # [S]
    edits: Edits | None = None


@torch.inference_mode()
def sample(logits: Tensor, columns: SamplingColumns) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The next token of each row [S], and which rows failed [S]. `logits` [S, V] is overwritten."""
    if columns.edits:
        _edit(logits, columns.edits)
    draws = columns.temperature > 0
    if not draws.any():
        return _most_likely(logits)
    largest = logits.amax(-1)  # [S]; NaN if there is one in the row
    failed = ~np.isfinite(largest.cpu().numpy())
    tokens = np.zeros(len(failed), np.int64)
    if not draws.all():
        greedy = np.flatnonzero(~draws)
        tokens[greedy] = _argmax(logits[greedy])
    if (drawn := np.flatnonzero(draws & ~failed)).size:
        if len(drawn) < len(tokens):
            these = torch.from_numpy(drawn).to(logits.device)
            logits, largest = logits[these], largest[these]
        tokens[drawn] = _draw(logits, largest, columns, drawn)
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


def _edit(logits: Tensor, edits: Edits) -> None:
    device = logits.device
    if len(edits.repetition):
        rows, tokens = (torch.from_numpy(index).to(device) for index in edits.penalised)
        repetition = torch.from_numpy(edits.repetition).to(device)
        values = logits[rows, tokens]
        values = torch.where(values > 0, values / repetition, values * repetition)
        logits[rows, tokens] = values - torch.from_numpy(edits.subtracted).to(device)
    if len(edits.addend):
        rows, tokens = (torch.from_numpy(index).to(device) for index in edits.added)
        addend = torch.from_numpy(edits.addend).to(device)
        logits.index_put_((rows, tokens), addend, accumulate=True)


def _most_likely(logits: Tensor) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """As `sample`, where no row draws: a NaN counts as the largest, so one pass shows it too."""
    tokens = _argmax(logits)
    best = logits[np.arange(len(tokens)), tokens]
    return tokens, ~np.isfinite(best.cpu().numpy())


def _argmax(logits: Tensor) -> Ints:
    """numpy's is ten times as fast as torch's on a CPU."""
    if logits.device.type == "cpu":
        best: Ints = logits.numpy().argmax(-1)
        return best
    indices: Ints = logits.argmax(-1).cpu().numpy()
    return indices


def _draw(logits: Tensor, largest: Tensor, columns: SamplingColumns, rows: Ints) -> Ints:
    """Draw for the rows `rows` of the columns, whose logits and largest ones are given."""
    temperature, top_k = columns.temperature[rows], columns.top_k[rows]
    top_p, min_p = columns.top_p[rows], columns.min_p[rows]
    numbers = uniforms(columns.seed[rows], columns.position[rows])
    if logits.device.type == "cpu":
        return draw_rows(logits.numpy(), largest.numpy(), temperature, top_k, top_p, min_p, numbers)
    arrays = (temperature, top_k, top_p, min_p, numbers)
    on_device = [torch.from_numpy(array).to(logits.device) for array in arrays]
    drawn: Ints = draw_batch(logits, largest, *on_device).cpu().numpy()
    return drawn
