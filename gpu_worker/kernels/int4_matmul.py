"""A linear layer for few rows with weights of four bits.

Axes: N rows, I inputs, O outputs, Q inputs of a group, J = I / Q groups.

    x         [N, I]            bfloat16, float16 or float32
    packed    [J, O, Q / 2]     uint8; byte q has input q of its group in the low half, and input
                                q + Q / 2 in the high: whatever is loaded is one run in x too
    scale     [J, O]            float32
    zero      [J, O]            float32; whole numbers
    bias      [O] or None       like x
    out       [N, O]            like x: x @ ((weight - zero) * scale).T + bias
"""

import torch
from torch import Tensor


def int4_matmul_reference(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None = None
) -> Tensor:
    """What `int4_matmul` computes."""
    levels = torch.cat((packed & 15, packed >> 4), dim=-1).float()  # [J, O, Q]
    weight = (levels - zero[..., None]) * scale[..., None]
    out = x.float() @ weight.transpose(1, 2).flatten(0, 1)
    return (out if bias is None else out + bias.float()).to(x.dtype)


def pack(levels: Tensor, group: int) -> Tensor:
    """Weights [O, I] in [0, 16) as `packed`."""
    num_out, num_in = levels.shape
    groups = levels.view(num_out, num_in // group, 2, group // 2).to(torch.uint8)
    return (groups[:, :, 0] | groups[:, :, 1] << 4).transpose(0, 1).contiguous()
