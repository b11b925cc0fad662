"""Numbers of eight bits, float8_e4m3fn.

A sign, 4 bits of exponent (bias 7), 3 of mantissa; 448 is the largest, and there is no infinity.
"""

import torch
from torch import Tensor

LARGEST = 448.0


def to_fp8_reference(x: Tensor) -> Tensor:
    """The nearest number of eight bits, of two the even one; all that is too large is 448."""
    return x.float().clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
