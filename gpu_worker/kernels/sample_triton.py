"""Sampling in Triton, three launches whatever the rows ask for; `sample.py` says what it computes.

Axes: S rows that sample, V vocabulary, C chunks of a row.

1. the largest logit of each chunk
2. the weights of each chunk and their sum; those of rows with filters are written down, and the
   larger ones of them, which most filters need alone, go onto a short list
3. for each row the least weight that stays, by bisection over the bits of weights, and the draw

Sums are integers, weights counted in 2^-44: whole numbers add up to the same in every order, so
that neither chunks, nor places on the short list, nor other rows change a single bit of a result.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.weights import count_and_mass, hash_of, mass_of, mass_up_to, weight_of

CHUNK = 4096  # logits of a program
SHORT_LIST = 8192  # weights that a row's list has room for
SHORT = tl.constexpr(2.0**-14)  # weights from here on are on it
ALL_BITS = tl.constexpr(0x3F800001)  # above the bits of 1.0


def sample(
    logits: Tensor,
    seed: Tensor,
    position: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    draws: bool = True,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """`draws`: some temperature may be above 0. `chunk` changes the time only."""
    num_rows, vocab = logits.shape
    assert logits.stride(1) == 1
    assert vocab <= 1 << 18  # or sums of weights might need more than 63 bits
    assert all(x.is_contiguous() for x in (seed, position, temperature, top_k, top_p, min_p))
    device, chunks = logits.device, triton.cdiv(vocab, chunk)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=device)
    failed = torch.empty(num_rows, dtype=torch.bool, device=device)
    if not num_rows:
        return tokens, failed
    weights = logits
    if logits.dtype != torch.float32:
        weights = torch.empty(num_rows, vocab, dtype=torch.float32, device=device)
    peaks = torch.empty(num_rows, chunks, dtype=torch.float32, device=device)
    places = torch.empty(num_rows, chunks, dtype=torch.int32, device=device)
    masses = torch.empty(num_rows, chunks, dtype=torch.int64, device=device)
    counts = torch.empty(num_rows, dtype=torch.int32, device=device)
    short_weights = torch.empty(num_rows, SHORT_LIST, dtype=torch.float32, device=device)
    short_tokens = torch.empty(num_rows, SHORT_LIST, dtype=torch.int32, device=device)
    sizes = {"V": vocab, "CHUNK": chunk, "LIMIT": SHORT_LIST, "num_warps": 8}
    padded = triton.next_power_of_2(chunks)
    _peaks_kernel[(num_rows, chunks)](
        logits, logits.stride(0), peaks, places, counts, V=vocab, CHUNK=chunk, num_warps=8
    )
    short = (counts, short_weights, short_tokens)
    rows = (temperature, top_k, top_p, min_p)
    strides = (logits.stride(0), weights.stride(0))
    if draws:
        _weights_kernel[(num_rows, chunks)](
            logits, weights, *strides, *rows, peaks, masses, *short, PADDED=padded, **sizes
        )
    _draw_kernel[(num_rows,)](
        logits,
        weights,
        *strides,
        *rows,
        seed,
        position,
        peaks,
        places,
        masses,
        *short,
        tokens,
        failed,
        PADDED=padded,
        **sizes,
    )
    return tokens, failed


@triton.jit
def _peaks_kernel(
    logits_ptr, stride, peaks_ptr, places_ptr, counts_ptr, V: tl.constexpr, CHUNK: tl.constexpr
):
    """One program for one chunk: the largest logit and its first place; NaN if there is one."""
    s = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1)
    v = c * CHUNK + tl.arange(0, CHUNK)  # [CHUNK]
    x = tl.load(logits_ptr + s * stride + v, mask=v < V, other=float("-inf")).to(tl.float32)
    is_number = x == x  # noqa: PLR0124
    has_nan = tl.min(is_number.to(tl.int32), axis=0) == 0
    x = tl.where(is_number, x, float("-inf"))
    peak = tl.max(x, axis=0)
    place = tl.min(tl.where(x == peak, v, V), axis=0)
    out = s * tl.num_programs(1) + c
    tl.store(peaks_ptr + out, tl.where(has_nan, float("nan"), peak))
    tl.store(places_ptr + out, place)
    if c == 0:
        tl.store(counts_ptr + s, 0)


@triton.jit
def _peak_of_row(peaks_ptr, s, V: tl.constexpr, CHUNK: tl.constexpr, PADDED: tl.constexpr):
    """The largest logit of a row; +inf if it is not finite."""
    CHUNKS: tl.constexpr = (V + CHUNK - 1) // CHUNK
    c = tl.arange(0, PADDED)  # [C]
    peaks = tl.load(peaks_ptr + s * CHUNKS + c, mask=c < CHUNKS, other=float("-inf"))
    is_number = peaks == peaks  # noqa: PLR0124
    peak = tl.max(tl.where(is_number, peaks, float("inf")), axis=0)
    return tl.where(peak == float("-inf"), float("inf"), peak)


@triton.jit
def _weights_kernel(
    logits_ptr,
    weights_ptr,
    logits_stride,
    weights_stride,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    peaks_ptr,
    masses_ptr,
    counts_ptr,
    short_weights_ptr,
    short_tokens_ptr,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    LIMIT: tl.constexpr,
    PADDED: tl.constexpr,
):
    """One program for one chunk of a row that draws."""
    s = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1)
    temperature = tl.load(temperature_ptr + s)
    peak = _peak_of_row(peaks_ptr, s, V, CHUNK, PADDED)
    if (temperature > 0) & (peak < float("inf")):
        v = c * CHUNK + tl.arange(0, CHUNK)  # [CHUNK]
        is_token = v < V
        x = tl.load(logits_ptr + s * logits_stride + v, mask=is_token, other=float("-inf"))
        weight = weight_of(x.to(tl.float32), peak, temperature)
        least = tl.load(min_p_ptr + s)
        mass = tl.sum(mass_of(tl.where(weight >= least, weight, 0.0)), axis=0)
        tl.store(masses_ptr + s * tl.num_programs(1) + c, mass)
        if (tl.load(top_k_ptr + s) > 0) | (tl.load(top_p_ptr + s) < 1) | (least > 0):
            tl.store(weights_ptr + s * weights_stride + v, weight, mask=is_token)
            is_short = is_token & (weight >= tl.maximum(least, SHORT))
            short = is_short.to(tl.int32)
            count = tl.sum(short, axis=0)
            if count > 0:
                first = tl.atomic_add(counts_ptr + s, count, sem="relaxed")
                place = first + tl.cumsum(short, axis=0) - 1
                is_short &= place < LIMIT
                tl.store(short_weights_ptr + s * LIMIT + place, weight, mask=is_short)
                tl.store(short_tokens_ptr + s * LIMIT + place, v, mask=is_short)


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
    peak = _peak_of_row(peaks_ptr, s, V, CHUNK, PADDED)
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
                listed = count_and_mass(short_ptr, tl.minimum(count, LIMIT), 0, CHUNK)[1]
                is_enough |= listed >= _part(top_p, total)
            if is_enough & (count <= LIMIT):
                bits = short_least.to(tl.int32, bitcast=True)
                bits = _least(short_ptr, count, bits, top_k, top_p, total, CHUNK)
                tokens_of_row_ptr = short_tokens_ptr + s * LIMIT
                token = _draw_short(short_ptr, tokens_of_row_ptr, count, bits, random, V, CHUNK)
            else:
                bits = min_p.to(tl.int32, bitcast=True)
                bits = _least(row_ptr, V, bits, top_k, top_p, total, CHUNK)
                token = _draw_long(row_ptr, bits, random, V, CHUNK)
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
def _least(weights_ptr, count, low, top_k, top_p, total, BLOCK: tl.constexpr):
    """The bits of the least weight that stays, of those from `low` on, whose sum is `total`."""
    if top_k > 0:
        high = ALL_BITS
        while high - low > 1:  # k weights are as large as `low`, or all that there are
            middle = (low + high) // 2
            if count_and_mass(weights_ptr, count, middle, BLOCK)[0] >= top_k:
                low = middle
            else:
                high = middle
        total = count_and_mass(weights_ptr, count, low, BLOCK)[1]
    if top_p < 1:
        target = _part(top_p, total)
        high = ALL_BITS
        while high - low > 1:  # weights from `low` on have the target, those from `high` on not
            middle = (low + high) // 2
            if count_and_mass(weights_ptr, count, middle, BLOCK)[1] >= target:
                low = middle
            else:
                high = middle
    return low


@triton.jit
def _draw_short(weights_ptr, tokens_ptr, count, bits, random, V: tl.constexpr, BLOCK: tl.constexpr):
    """The token that the random number means, of a list in no order."""
    total = count_and_mass(weights_ptr, count, bits, BLOCK)[1]
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
def _draw_long(weights_ptr, bits, random, V: tl.constexpr, BLOCK: tl.constexpr):
    """The token that the random number means, of all."""
    total = count_and_mass(weights_ptr, V, bits, BLOCK)[1]
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
