"""Numbers of eight bits made of integers, in Triton: not every GPU has instructions for them.

`fp8.py` says what they are.
"""

import triton
import triton.language as tl


@triton.jit
def to_fp8(x):
    """float32 of any shape as the bits of e4m3, in uint8."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    sign = ((bits >> 24) & 0x80).to(tl.int32)
    size = tl.where(size > 0x7F800000, size, tl.minimum(size, 0x43E00000))  # 448.0; NaN stays
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 numbers are 2^-9 apart: adding 2^14 leaves no smaller digit, rounded to even.
    magic = size.to(tl.float32, bitcast=True) + 16384.0
    tiny = magic.to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(size < 0x3C800000, tiny, normal)
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (code | sign).to(tl.uint8)


@triton.jit
def from_fp8(code):
    """The bits of e4m3 [uint8, any shape] as float32; exact. Its NaN reads as 480."""
    code = code.to(tl.int32)
    bits = ((code & 0x80) << 24) | ((code & 0x7F) << 20)
    return bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120, between the biases
