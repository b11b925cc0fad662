"""A linear layer for few rows with weights of four bits, and AWQ's and GPTQ's layouts made its own.

Axes: N rows, at most 64; I inputs, O outputs, Q inputs of a group, J = I / Q groups.

    x         [N, I]            bfloat16 or float32
    packed    [J, O, Q / 2]     uint8; byte q has input q of its group in the low half, and input
                                q + Q / 2 in the high: whatever is loaded is one run in x too
    scale     [J, O]            float32
    zero      [J, O]            float32; whole numbers
    bias      [O] or None       like x
    out       [N, O]            like x: x @ ((weight - zero) * scale).T + bias

Both formats hold eight weights in an int32: of eight outputs in AWQ, of eight inputs in GPTQ.
"""

import torch
from torch import Tensor

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # which of eight halves of a byte output 0, 1, ... lies in


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


def from_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(packed, scale, zero) of qweight [I, O / 8], qzeros [J, O / 8] int32 and scales [J, O]."""
    levels = _halves(qweight)[..., AWQ_ORDER].flatten(1).T  # [O, I]
    zeros = _halves(qzeros)[..., AWQ_ORDER].flatten(1)  # [J, O]
    return pack(levels, len(qweight) // len(scales)), scales.float(), zeros.float()


def from_gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor | None, is_v2: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """(packed, scale, zero) of qweight [I / 8, O], qzeros [J, O / 8] int32 and scales [J, O].

    The first version of the format holds zeros less 1. Raises ValueError where `g_idx` [I] puts
    inputs into groups out of order.
    """
    num_in, num_groups = len(qweight) * 8, len(scales)
    group = num_in // num_groups
    if g_idx is not None and (g_idx.cpu() != torch.arange(num_in) // group).any():
        raise ValueError("inputs lie in groups out of order (act-order, desc_act)")
    levels = _halves(qweight).permute(1, 0, 2).flatten(1)  # [O, I]
    zeros = _halves(qzeros).flatten(1) + (0 if is_v2 else 1)
    return pack(levels, group), scales.float(), zeros.float()


def _halves(words: Tensor) -> Tensor:
    """The eight halves of a byte in each int32 of words, the lowest first: [..., 8]."""
    return words[..., None] >> torch.arange(0, 32, 4, device=words.device) & 15
