"""The last launch of sampling in Triton: each row's filters, and its draw; see `sample_triton.py`.

Axes: S rows that sample, V vocabulary, C chunks of a row.
"""

import triton
import triton.language as tl

from gpu_worker.kernels.sample_weights import (
    SHORT,
    hash_of,
    least_with,
    mass_of,
    mass_up_to,
    peak_of_row,
    total_of,
    weight_of,
)

BLOCK = tl.constexpr(2048)  # weights that are looked at together
AHEAD = tl.constexpr(4)  # blocks of a whole row asked for before they are needed


@triton.jit
def _draw_kernel(
    logits_ptr,
    weights_ptr,
    logits_stride,
    weights_stride,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    position_ptr,
    peaks_ptr,
    places_ptr,
    masses_ptr,
    counts_ptr,
    short_weights_ptr,
    short_tokens_ptr,
    tokens_ptr,
    failed_ptr,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    LIMIT: tl.constexpr,
    PADDED: tl.constexpr,
):
    """One program for one row."""
    CHUNKS: tl.constexpr = (V + CHUNK - 1) // CHUNK
    s = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, PADDED)  # [C]
    temperature = tl.load(temperature_ptr + s)
    peak = peak_of_row(peaks_ptr, s, V, CHUNK, PADDED)
    is_failed = peak == float("inf")
    token = tl.zeros((), tl.int32)
    if (temperature > 0) & (peak < float("inf")):
        random = hash_of(tl.load(seed_ptr + s), tl.load(position_ptr + s))
        top_k, top_p, min_p = tl.load(top_k_ptr + s), tl.load(top_p_ptr + s), tl.load(min_p_ptr + s)
        masses = tl.load(masses_ptr + s * CHUNKS + c, mask=c < CHUNKS, other=0)
        row_ptr = weights_ptr + s * weights_stride
        if (top_k > 0) | (top_p < 1):
            short_ptr = short_weights_ptr + s * LIMIT
            count = tl.load(counts_ptr + s)
            short_least = tl.maximum(min_p, SHORT)
            total = tl.sum(masses, axis=0)
            is_enough = min_p >= SHORT
            if top_k > 0:
                is_enough |= count >= top_k
            else:
                listed = total_of(short_ptr, tl.minimum(count, LIMIT), 0, True, 1, BLOCK)
                is_enough |= listed >= _part(top_p, total)
            if is_enough & (count <= LIMIT):
                bits = short_least.to(tl.int32, bitcast=True)
                bits = _least(short_ptr, count, bits, top_k, top_p, total, 1)
                tokens_of_row_ptr = short_tokens_ptr + s * LIMIT
                token = _draw_short(short_ptr, tokens_of_row_ptr, count, bits, random, V)
            else:
                bits = min_p.to(tl.int32, bitcast=True)
                bits = _least(row_ptr, V, bits, top_k, top_p, total, AHEAD)
                token = _draw_long(row_ptr, bits, random, V)
        else:
            before = tl.cumsum(masses, axis=0) - masses  # [C]
            target = tl.umulhi(random, tl.sum(masses, axis=0).to(tl.uint64)).to(tl.int64)
            chunk = tl.sum(((before + masses) <= target).to(tl.int32), axis=0)
            target -= tl.sum(tl.where(c == chunk, before, 0), axis=0)
            v = chunk * CHUNK + tl.arange(0, CHUNK)
            if min_p > 0:
                weight = tl.load(row_ptr + v, mask=v < V, other=0.0)
                weight = tl.where(weight >= min_p, weight, 0.0)
            else:
                x = tl.load(logits_ptr + s * logits_stride + v, mask=v < V, other=float("-inf"))
                weight = weight_of(x.to(tl.float32), peak, temperature)
            sums = tl.cumsum(mass_of(weight), axis=0)
            token = chunk * CHUNK + tl.sum((sums <= target).to(tl.int32), axis=0)
    elif peak < float("inf"):
        peaks = tl.load(peaks_ptr + s * CHUNKS + c, mask=c < CHUNKS, other=float("-inf"))
        places = tl.load(places_ptr + s * CHUNKS + c, mask=c < CHUNKS, other=V)
        token = tl.min(tl.where(peaks == peak, places, V), axis=0)
    tl.store(tokens_ptr + s, token.to(tl.int64))
    tl.store(failed_ptr + s, is_failed)


@triton.jit
def _part(top_p, total):
    """The least whole number that is top_p of the total."""
    return tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64)


@triton.jit
def _least(weights_ptr, count, low, top_k, top_p, total, STAGES: tl.constexpr):
    """The bits of the least weight that stays, of those from `low` on, whose sum is `total`."""
    if top_k > 0:
        low = least_with(weights_ptr, count, low, top_k, False, STAGES, BLOCK)
        total = total_of(weights_ptr, count, low, True, STAGES, BLOCK)
    if top_p < 1:
        low = least_with(weights_ptr, count, low, _part(top_p, total), True, STAGES, BLOCK)
    return low


@triton.jit
def _draw_short(weights_ptr, tokens_ptr, count, bits, random, V: tl.constexpr):
    """The token that the random number means, of a list in no order."""
    total = total_of(weights_ptr, count, bits, True, 1, BLOCK)
    target = tl.umulhi(random, total.to(tl.uint64)).to(tl.int64)
    low = -1
    high = V - 1
    while high - low > 1:  # tokens up to `low` have no more than the target, those up to `high` do
        middle = (low + high) // 2
        if mass_up_to(weights_ptr, tokens_ptr, count, bits, middle, BLOCK) > target:
            high = middle
        else:
            low = middle
    return high


@triton.jit
def _draw_long(weights_ptr, bits, random, V: tl.constexpr):
    """The token that the random number means, of all."""
    total = total_of(weights_ptr, V, bits, True, AHEAD, BLOCK)
    target = tl.umulhi(random, total.to(tl.uint64)).to(tl.int64)
    before = tl.zeros((), tl.int64)
    token = tl.zeros((), tl.int32)
    for start in range(0, V, BLOCK):  # the first `token` tokens have no more than the target
        v = start + tl.arange(0, BLOCK)
        weight = tl.load(weights_ptr + v, mask=v < V, other=0.0)
        weight = tl.where(weight.to(tl.int32, bitcast=True) >= bits, weight, 0.0)
        sums = before + tl.cumsum(mass_of(weight), axis=0)
        token += tl.sum((sums <= target).to(tl.int32), axis=0)
        before = tl.max(sums, axis=0)
    return token
