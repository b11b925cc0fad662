"""What the sampling kernels share: weights, their sums as whole numbers, the random number."""

import triton
import triton.language as tl

UNITS = tl.constexpr(2.0**44)  # of the largest weight, which is 1
SHORT = tl.constexpr(2.0**-18)  # weights from here on are on a row's short list


@triton.jit
def peak_of_row(peaks_ptr, s, V: tl.constexpr, CHUNK: tl.constexpr, PADDED: tl.constexpr):
    """The largest logit of a row; +inf if it is not finite."""
    CHUNKS: tl.constexpr = (V + CHUNK - 1) // CHUNK
    c = tl.arange(0, PADDED)  # [C]
    peaks = tl.load(peaks_ptr + s * CHUNKS + c, mask=c < CHUNKS, other=float("-inf"))
    is_number = peaks == peaks  # noqa: PLR0124
    peak = tl.max(tl.where(is_number, peaks, float("inf")), axis=0)
    return tl.where(peak == float("-inf"), float("inf"), peak)


@triton.jit
def weight_of(x, peak, temperature):
    """exp((x - peak) / temperature), float32, with the same bits on every GPU.

    Of operations that round as IEEE says, and within 2 units in the last place; the GPUs' own exp
    is further off, and would draw another token than a CPU more often. Below e^-87 it is 0.
    """
    y = tl.div_rn(x - peak, temperature)
    is_some = y > -87.0
    y = tl.maximum(y, -87.0)
    n = tl.floor(tl.fma(y, 1.4426950408889634, 0.5))
    r = tl.fma(n, -0.693145751953125, y)
    r = tl.fma(n, -1.428606765330187e-06, r)  # y = n ln 2 + r
    p = tl.fma(r, 1.9875691500e-4, 1.3981999507e-3)
    p = tl.fma(p, r, 8.3334519073e-3)
    p = tl.fma(p, r, 4.1665795894e-2)
    p = tl.fma(p, r, 1.6666665459e-1)
    p = tl.fma(p, r, 5.0000001201e-1)
    p = tl.fma(p, r * r, r) + 1.0
    power = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(is_some, p * power, 0.0)


@triton.jit
def mass_of(weight):
    """Weights as whole numbers, int64."""
    return (weight * UNITS).to(tl.int64)


@triton.jit
def total_of(
    weights_ptr, count, bits, BY_MASS: tl.constexpr, STAGES: tl.constexpr, BLOCK: tl.constexpr
):
    """How many of `count` weights have at least these bits, or their sum; int64."""
    total = tl.zeros((BLOCK,), tl.int64)
    for start in tl.range(0, count, BLOCK, num_stages=STAGES):
        i = start + tl.arange(0, BLOCK)  # [BLOCK]
        weight = tl.load(weights_ptr + i, mask=i < count, other=-1.0)
        total += _terms(weight, bits, BY_MASS)
    return tl.sum(total, axis=0)


@triton.jit
def least_with(
    weights_ptr,
    count,
    low,
    target,
    BY_MASS: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest bits such that weights with at least these have the target together.

    In number or in sum; or `low`, if all that are not below it have not. Invariant: weights from
    `low` on have the target, or `low` is where it began; those from `high` on have not.
    """
    high = low * 0 + 0x3F800001  # above the bits of 1.0
    while high - low > 1:
        quarter = tl.maximum((high - low) // 4, 1)
        a = low + quarter
        b = tl.minimum(a + quarter, high - 1)
        c = tl.minimum(b + quarter, high - 1)
        total_a = tl.zeros((BLOCK,), tl.int64)
        total_b = tl.zeros((BLOCK,), tl.int64)
        total_c = tl.zeros((BLOCK,), tl.int64)
        for start in tl.range(0, count, BLOCK, num_stages=STAGES):
            i = start + tl.arange(0, BLOCK)  # [BLOCK]
            weight = tl.load(weights_ptr + i, mask=i < count, other=-1.0)
            total_a += _terms(weight, a, BY_MASS)
            total_b += _terms(weight, b, BY_MASS)
            total_c += _terms(weight, c, BY_MASS)
        has_a = tl.sum(total_a, axis=0) >= target
        has_b = tl.sum(total_b, axis=0) >= target
        has_c = tl.sum(total_c, axis=0) >= target
        high = tl.where(has_c, high, tl.where(has_b, c, tl.where(has_a, b, a)))
        low = tl.where(has_c, c, tl.where(has_b, b, tl.where(has_a, a, low)))
    return low


@triton.jit
def _terms(weight, bits, BY_MASS: tl.constexpr):
    """What each weight adds to a total: if its bits are at least these, 1 or itself."""
    stays = weight.to(tl.int32, bitcast=True) >= bits  # those of a negative weight are not
    if BY_MASS:
        terms = mass_of(tl.where(stays, weight, 0.0))
    else:
        terms = stays.to(tl.int64)
    return terms


@triton.jit
def mass_up_to(weights_ptr, tokens_ptr, count, bits, last, BLOCK: tl.constexpr):
    """The sum of the weights with at least these bits whose tokens are at most `last`."""
    mass = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)  # [BLOCK]
        weight = tl.load(weights_ptr + i, mask=i < count, other=0.0)
        token = tl.load(tokens_ptr + i, mask=i < count, other=0)
        stays = (weight.to(tl.int32, bitcast=True) >= bits) & (token <= last)
        mass += mass_of(tl.where(stays, weight, 0.0))
    return tl.sum(mass, axis=0)


@triton.jit
def hash_of(seed, position):
    """53 bits at the top of a word, uint64; `number` of `sample.py` divided by 2^64."""
    start = _mix(seed.to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15)
    steps = position.to(tl.uint64, bitcast=True) + 1
    return _mix(start + steps * 0x9E3779B97F4A7C15) >> 11 << 11


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)
