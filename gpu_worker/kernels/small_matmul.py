"""A linear layer for few rows: weights are read once, and widened as they are read.

Axes: N rows, I inputs, O outputs.

    x         [N, I]            bfloat16, float16 or float32
    weight    [O, I]            like x, or int8, or float8_e4m3fn without NaN
    scale     [O] or None       float32; of int8 and float8 weights
    bias      [O] or None       like x
    out       [N, O]            like x: x @ (weight * scale).T + bias

Products are summed in float32, and scaled thereafter.
"""

import torch
from torch import Tensor

MAX_ROWS = 64  # of a program: more rows read the weights again, if from the cache


def small_matmul_reference(
    x: Tensor, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """What `small_matmul` computes."""
    wide = weight.float() if scale is None else weight.float() * scale[:, None]
    out = x.float() @ wide.T
    return (out if bias is None else out + bias.float()).to(x.dtype)


def is_worth(num_rows: int, num_out: int, num_in: int, dtype: torch.dtype) -> bool:
    """Whether `small_matmul` should be faster than the library on a H200: predicted, not measured.

    Weights of one byte: always, since the library would read them widened, in twice the bytes.
    Others: where the library's tiles of 64 or 128 outputs leave processors idle.
    """
    if num_rows > MAX_ROWS or num_in < 256:
        return False
    if dtype.itemsize == 1:
        return True
    return num_rows <= 16 and num_out <= 64 * 132
