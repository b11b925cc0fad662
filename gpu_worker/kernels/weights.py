"""What the sampling kernels share: weights, their sums as whole numbers, and the random number."""

import triton
import triton.language as tl

UNITS = tl.constexpr(2.0**44)  # of the largest weight, which is 1


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
def count_and_mass(weights_ptr, count, bits, BLOCK: tl.constexpr):
    """How many of `count` weights have at least these bits, and their sum."""
    number = tl.zeros((BLOCK,), tl.int32)
    mass = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)  # [BLOCK]
        weight = tl.load(weights_ptr + i, mask=i < count, other=0.0)
        stays = (i < count) & (weight.to(tl.int32, bitcast=True) >= bits)
        number += stays.to(tl.int32)
        mass += mass_of(tl.where(stays, weight, 0.0))
    return tl.sum(number, axis=0), tl.sum(mass, axis=0)


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
