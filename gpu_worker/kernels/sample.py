"""Logits to tokens: greedy, or drawn under temperature, min_p, top_k and top_p, row by row.

Axes: S rows that sample, V vocabulary.

    logits               [S, V]  float32 (then overwritten) or bfloat16
    seed, position       [S]     int64, the seed's 64 bits; they alone make the row's random number
    temperature          [S]     float32; 0: the largest logit, of equal ones the first
    top_k                [S]     int32; 0: all
    top_p, min_p         [S]     float32; 1 and 0: all
    out                  [S] int64 tokens, and [S] bool: which rows failed

Weights are exp((logit - largest) / temperature): the largest is 1.

    min_p   weights of at least min_p stay
    top_k   weights at least as large as the k-th largest stay
    top_p   of what these two leave, the largest stay until they have top_p of its sum

Equal weights stay or go together. A random number in [0, 1), made of seed and position by a hash,
inverts what is left in order of token id. Nothing here depends on an order among the weights, so
none has to be made. A row with a NaN, with +inf, or with nothing above -inf fails alone: token 0.
"""

import math

import torch
from torch import Tensor

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def sample_reference(
    logits: Tensor,
    seed: Tensor,
    position: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
) -> tuple[Tensor, Tensor]:
    """What `sample` computes, with sorting and sums in float64."""
    tokens = torch.zeros(len(logits), dtype=torch.int64)
    failed = torch.zeros(len(logits), dtype=torch.bool)
    columns = (seed, position, temperature, top_k, top_p, min_p)
    rows = zip(logits.float(), *(column.tolist() for column in columns), strict=True)
    for s, (row, row_seed, place, heat, k, p, least) in enumerate(rows):
        largest = row.amax()
        if not math.isfinite(largest):
            failed[s] = True
        elif heat <= 0:
            tokens[s] = (row == largest).nonzero()[0, 0]
        else:
            tokens[s] = _draw(((row - largest) / heat).exp(), number(row_seed, place), k, p, least)
    return tokens.to(logits.device), failed.to(logits.device)


def number(seed: int, position: int) -> float:
    """[0, 1) in steps of 2^-53: splitmix64, its start scattered by the seed."""
    mixed = _mix((seed + GOLDEN) & WORD) + GOLDEN * (position + 1)
    return (_mix(mixed & WORD) >> 11) * 2.0**-53


def _mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


def _draw(weights: Tensor, share: float, top_k: int, top_p: float, min_p: float) -> int:
    kept = torch.where(weights >= min_p, weights, 0.0).double()
    if top_k:
        least = kept.sort(descending=True).values[min(top_k, len(kept)) - 1]
        kept = torch.where(kept >= least, kept, 0.0)
    if top_p < 1:
        largest_first = kept.sort(descending=True).values
        sums = largest_first.cumsum(0)
        last = min(int((sums < top_p * sums[-1]).sum()), len(kept) - 1)
        kept = torch.where(kept >= largest_first[last], kept, 0.0)
    sums = kept.cumsum(0)
    return int((sums <= share * sums[-1]).sum())
