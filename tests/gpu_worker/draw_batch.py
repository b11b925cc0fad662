"""Draws for all rows at once, by sorting: the definition that `gpu_worker.draw_rows` is held to.

Axes: S rows, V vocabulary. Weights are exp((logit - largest) / temperature): the largest is 1.

    min_p   weights of at least min_p stay
    top_k   weights at least as large as the k-th largest stay
    top_p   of what these two leave, the largest stay until they have top_p of its sum

All three come down to one number, the least weight that stays: equal weights stay or go together,
so that no order among them matters.
"""

import torch
from torch import Tensor


def draw_batch(
    logits: Tensor,
    largest: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    numbers: Tensor,
) -> Tensor:
    """A token for each row of logits [S, V]; `numbers` [S] float64 in [0, 1) say which."""
    weights = (logits - largest[:, None]).div_(temperature[:, None]).exp_()
    least = thresholds(weights, top_k, top_p, min_p)
    sums = weights.masked_fill_(weights < least[:, None], 0.0).cumsum(-1, dtype=torch.float64)
    total = sums[:, -1]
    # Rounding could bring the target to the total, behind the last weight.
    target = torch.minimum(numbers * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, target[:, None], right=True)[:, 0]


def thresholds(weights: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """[S] least weight that stays in each row of weights [S, V]; top_k 0 and top_p 1 mean all."""
    largest_first = weights.sort(-1, descending=True).values
    last_of_all = weights.shape[1] - 1
    last = torch.where(top_k > 0, top_k - 1, last_of_all).clamp(max=last_of_all)
    least = torch.maximum(largest_first.gather(1, last[:, None])[:, 0], min_p)
    least = torch.where((top_k > 0) | (min_p > 0), least, 0.0)
    left = largest_first.masked_fill(largest_first < least[:, None], 0.0)
    sums = left.cumsum(-1, dtype=torch.float64)
    last = (sums < top_p.double()[:, None] * sums[:, -1:]).sum(-1).clamp(max=last_of_all)
    nucleus = largest_first.gather(1, last[:, None])[:, 0]
    return torch.where(top_p < 1, torch.maximum(least, nucleus), least)
