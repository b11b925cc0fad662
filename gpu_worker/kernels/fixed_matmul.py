"""A linear layer for any number of rows, in one order of sums: a row is the same bits in any batch.

Axes: N rows, I inputs, O outputs.

    x         [N, I]       bfloat16, float16 or float32
    weight    [O, I]       like x
    bias      [O] or None  like x
    out       [N, O]       like x: x @ weight.T + bias, products summed in float32

A library chooses by N how it cuts the inputs, and with it the order of their sums. Here tiles
follow from the layer's shape alone.
"""

from torch import Tensor


def fixed_matmul_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """What `fixed_matmul` computes."""
    out = x.float() @ weight.float().T
    return (out if bias is None else out + bias.float()).to(x.dtype)
