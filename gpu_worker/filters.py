"""min_p, top_k and top_p as one number a row: the least weight that may be drawn.

Axes: S rows, V vocabulary. Weights are exp(logit - largest logit), so the largest is 1.

    min_p   weights of at least min_p stay
    top_k   weights at least as large as the k-th largest stay
    top_p   of what these two leave, the largest stay until they have top_p of its sum

Equal weights stay or go together, so that no order among them matters.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

FIRST_LOOK = 1024  # the nucleus is rarely larger; sorting so many costs a tenth of sorting all


def thresholds(weights: Tensor, top_k: Ints, top_p: Floats, min_p: Floats) -> Tensor:
    """[S] least weight that stays in each row of weights [S, V]; top_k 0 and top_p 1 mean all."""
    if weights.device.type == "cpu":
        rows = zip(weights.numpy(), top_k.tolist(), top_p.tolist(), min_p.tolist(), strict=True)
        return torch.tensor([_threshold(*row) for row in rows])
    columns = (torch.from_numpy(column).to(weights.device) for column in (top_k, top_p, min_p))
    return thresholds_reference(weights, *columns)


def thresholds_reference(weights: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """The same, all rows at once, by sorting: for GPUs, and as the truth for `_threshold`."""
    largest_first = weights.sort(-1, descending=True).values
    last = (torch.where(top_k > 0, top_k, weights.shape[1]) - 1).clamp(max=weights.shape[1] - 1)
    least = torch.maximum(largest_first.gather(1, last[:, None])[:, 0], min_p)
    left = largest_first.masked_fill(largest_first < least[:, None], 0.0).double()
    sums = left.cumsum(-1)
    enough = (sums < top_p.double()[:, None] * sums[:, -1:]).sum(-1)  # index of the last that stays
    nucleus = largest_first.gather(1, enough.clamp(max=weights.shape[1] - 1)[:, None])[:, 0]
    return torch.where(top_p < 1, torch.maximum(least, nucleus), least)


def _threshold(weights: Floats, top_k: int, top_p: float, min_p: float) -> float:
    least = min_p
    if 0 < top_k < len(weights):
        least = max(least, float(np.partition(weights, -top_k)[-top_k]))
    if top_p >= 1:
        return least
    if least > 0:
        return max(least, _nucleus(np.sort(weights[weights >= least]), top_p, None))
    if len(weights) > 4 * FIRST_LOOK:
        largest = np.sort(np.partition(weights, -FIRST_LOOK)[-FIRST_LOOK:])
        total = float(weights.sum(dtype=np.float64))
        if float(largest.sum(dtype=np.float64)) >= top_p * total:
            return _nucleus(largest, top_p, total)
    return _nucleus(np.sort(weights), top_p, None)


def _nucleus(ascending: Floats, top_p: float, total: float | None) -> float:
    """The least of the largest weights that have `top_p` of the total together."""
    sums = ascending[::-1].cumsum(dtype=np.float64)
    target = top_p * (sums[-1] if total is None else total)
    return float(ascending[::-1][min(int(np.searchsorted(sums, target)), len(sums) - 1)])
