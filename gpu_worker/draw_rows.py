"""Draws on a CPU: row by row, so that what one row needs stays in the processor's cache.

Axes: S rows, V vocabulary. Weights are exp((logit - largest) / temperature): the largest is 1.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

STRIDE = 256  # weights summed at once, before the draw looks closer
FIRST_LOOK = 1e-4  # weights from here on are few, and most filters need no others


def draw_rows(
    logits: Floats,
    largest: Floats,
    temperature: Floats,
    top_k: Ints,
    top_p: Floats,
    min_p: Floats,
    numbers: npt.NDArray[np.float64],
) -> Ints:
    """A token for each row of logits [S, V]; `numbers` [S] in [0, 1) say which."""
    num_rows, vocab = logits.shape
    padded = np.zeros(-(-vocab // STRIDE) * STRIDE, np.float32)
    weights = padded[:vocab]
    tokens = np.empty(num_rows, np.int64)
    filters = zip(top_k.tolist(), top_p.tolist(), min_p.tolist(), strict=True)
    for row, (k, p, least) in enumerate(filters):
        with np.errstate(over="ignore"):  # a tiny temperature: -inf, and so no weight
            np.subtract(logits[row], largest[row], out=weights)
            if temperature[row] != 1:
                weights /= temperature[row]
            np.exp(weights, out=weights)
        if k or p < 1 or least:
            kept = np.flatnonzero(weights >= threshold(weights, k, p, least))
            tokens[row] = kept[_place(weights[kept], numbers[row])[0]]
        else:
            tokens[row] = _invert(padded, numbers[row])
    return tokens


def threshold(weights: Floats, top_k: int, top_p: float, min_p: float) -> float:
    """The least weight [V] that stays, as `kernels/sample.py` says. Large ones come first."""
    large = weights[weights >= max(min_p, FIRST_LOOK)]
    total: float | None = None  # of what min_p leaves; None: `large` is all that counts
    if min_p < FIRST_LOOK:
        if top_k:
            is_enough = len(large) >= top_k
        elif top_p < 1:
            total = float((weights[weights >= min_p] if min_p else weights).sum())
            is_enough = float(large.sum()) >= top_p * total
        else:
            return min_p
        if not is_enough:
            large, total = weights[weights >= min_p], None
    least = min_p
    if 0 < top_k <= len(large):
        least = float(np.partition(large, -top_k)[-top_k])
        large = large[large >= least]
    return least if top_p >= 1 else _nucleus(large, top_p, total)


def _nucleus(weights: Floats, top_p: float, total: float | None) -> float:
    """The least of the largest weights that have `top_p` of the total together."""
    descending = np.sort(weights)[::-1]
    sums = descending.cumsum(dtype=np.float64)
    target = top_p * (sums[-1] if total is None else total)
    return float(descending[min(int(np.searchsorted(sums, target)), len(sums) - 1)])


def _invert(weights: Floats, number: float) -> int:
    """The first token up to which weights sum to more than `number` of the total.

    Sums over strides come first and then one stride is looked at: a running sum over all of the
    vocabulary costs several times as much.
    """
    strides = weights.reshape(-1, STRIDE)
    stride, share = _place(strides.sum(1), number)
    return stride * STRIDE + _place(strides[stride], share)[0]


def _place(weights: Floats, number: float) -> tuple[int, float]:
    """Where in the weights the share `number` of the total lies, and how far into that one."""
    sums = weights.cumsum(dtype=np.float64)
    # Rounding could bring the target to the total, behind the last weight.
    target = min(number * sums[-1], np.nextafter(sums[-1], 0.0))
    place = int(np.searchsorted(sums, target, side="right"))  # its weight is above 0
    before = sums[place - 1] if place else 0.0
    return place, min(max((target - before) / (sums[place] - before), 0.0), 1.0)
