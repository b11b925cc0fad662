"""Root mean square normalisation, with the residual addition that comes before it.

Axes: N tokens of the step, E model width.

    x, residual   [N, E]
    weight        [E]
    out           two of [N, E]: x + residual normalised, and x + residual
"""

import torch
from torch import Tensor


def rms_norm_reference(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What `rms_norm` computes. The sum is rounded to x's dtype before it is normalised."""
    total = x if residual is None else x + residual
    wide = total.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
    return normed.to(x.dtype), total
