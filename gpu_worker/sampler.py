"""Logits to tokens, each row by itself: a function of its logits, its seed and its position.

Axes: S rows that sample, V vocabulary, K edits of single logits.

In this order, as vLLM has it but for the first two, which it swaps with the third:

1. repetition penalty, on every token of prompt and answer: positive logits are divided by it,
   negative ones multiplied
2. presence and frequency penalties, on the tokens of the answer: subtracted once, and for each time
3. logit bias, added; and end tokens banned before `min_tokens`
4. temperature 0: the largest logit, of equal ones the first; else logits / temperature
5. min_p, top_k, top_p (see `filters`)
6. the draw: one uniform number, made from seed and position by a hash, inverts the distribution
   in order of token id. No state: whoever shares the batch, on whatever worker, it is the same.

A row whose logits are not finite, or all banned, fails alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.filters import thresholds

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

STRIDE = 256  # weights summed at once before the draw looks closer; measured, with 49k tokens


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
    largest = logits.amax(-1)  # [S]; NaN if there is one in the row
    failed = ~np.isfinite(largest.cpu().numpy())
    draws = columns.temperature > 0
    tokens = np.zeros(len(failed), np.int64)
    if not draws.all():
        greedy = np.flatnonzero(~draws)
        tokens[greedy] = _argmax(logits if len(greedy) == len(draws) else logits[greedy])
    if (drawn := np.flatnonzero(draws & ~failed)).size:
        rows = torch.from_numpy(drawn).to(logits.device)
        tokens[drawn] = _draw(logits[rows], largest[rows], columns, drawn)
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


def _argmax(logits: Tensor) -> Ints:
    """numpy's is ten times as fast as torch's on a CPU."""
    if logits.device.type == "cpu":
        best: Ints = logits.numpy().argmax(-1)
        return best
    indices: Ints = logits.argmax(-1).cpu().numpy()
    return indices


def _draw(logits: Tensor, largest: Tensor, columns: SamplingColumns, rows: Ints) -> Ints:
    """Draw for the rows `rows` of the columns, whose logits and largest ones are given."""
    device = logits.device
    temperature = torch.from_numpy(columns.temperature[rows]).to(device)
    # Of the difference, so that no temperature makes infinities: the largest weight is 1.
    weights = (logits - largest[:, None]).div_(temperature[:, None]).exp_()  # [S, V]
    top_k, top_p, min_p = columns.top_k[rows], columns.top_p[rows], columns.min_p[rows]
    filtered = np.flatnonzero((top_k > 0) | (top_p < 1) | (min_p > 0))
    if filtered.size:
        these = torch.from_numpy(filtered).to(device)
        kept = weights[these]
        least = thresholds(kept, top_k[filtered], top_p[filtered], min_p[filtered])
        weights[these] = kept.masked_fill_(kept < least[:, None], 0.0)
    numbers = uniforms(columns.seed[rows], columns.position[rows])
    drawn: Ints = _invert(weights, torch.from_numpy(numbers).to(device)).cpu().numpy()
    return drawn


def _invert(weights: Tensor, numbers: Tensor) -> Tensor:
    """For each row the first token up to which weights sum to more than `number` of the total.

    Sums over strides come first and then one stride is looked at: a running sum over all of the
    vocabulary costs several times as much.
    """
    if short := -weights.shape[1] % STRIDE:
        weights = torch.nn.functional.pad(weights, (0, short))
    strides = weights.view(len(weights), -1, STRIDE)  # [S, V / STRIDE, STRIDE]
    sums = strides.sum(-1).double()
    stride, share = _step_down(sums, numbers)
    within = strides[torch.arange(len(weights), device=weights.device), stride].double()
    token, _ = _step_down(within, share)
    return stride * STRIDE + token


def _step_down(weights: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Where in weights [S, n] the share `numbers` [S] of the total lies, and how far into that."""
    sums = weights.cumsum(-1)
    total = sums[:, -1]
    # Rounding could bring the target to the total, behind the last weight.
    target = torch.minimum(numbers * total, torch.nextafter(total, torch.zeros_like(total)))
    place = torch.searchsorted(sums, target[:, None], right=True)  # [S, 1]; its weight is above 0
    weight = weights.gather(1, place)[:, 0]
    before = sums.gather(1, place)[:, 0] - weight
    return place[:, 0], ((target - before) / weight).clamp_(0.0, 1.0)
