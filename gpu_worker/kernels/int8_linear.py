"""A linear layer in eight bits: weights by output, activations by row and group of inputs.

Axes: N tokens of the step, I inputs, O outputs, Q = 32 inputs of a group.

    x         [N, I]   I a multiple of Q
    values    [O, I]   int8, the weights divided by their output's scale
    scale     [O]      float32
    bias      [O]
    out       [N, O]   in the type of x

Activations are rounded as they come, each group of a row by its largest: a single large one, as
language models have them, then costs its own group precision and no other. Of a row with a group
that is not finite, no output is.
"""

import torch
from torch import Tensor

from gpu_worker.kernels.widen import widen_bytes_reference

GROUP = 32
LARGEST = 127  # and -127: a number and its negative are the same number of steps away


def int8_linear_reference(x: Tensor, values: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """What `Int8Linear` computes, up to the rounding of float32."""
    weight = widen_bytes_reference(values, scale, torch.float32)
    wide_bias = None if bias is None else bias.float()
    return torch.nn.functional.linear(rounded(x), weight, wide_bias).to(x.dtype)


def rounded(x: Tensor) -> Tensor:
    """x as eight bits know it, [N, I] float32."""
    groups = x.float().unflatten(1, (-1, GROUP))
    most = groups.abs().amax(2, keepdim=True)
    levels = (groups * (LARGEST / most)).round() * (most * (1 / LARGEST))
    return torch.where(most > 0, levels, groups).flatten(1)
