"""The gated activation of Gemma's feed-forward layer and its kin: gelu(gate) * up.

Axes: N tokens of the step, F feed-forward width.

    gate_up   [N, 2F]   the gate first
    tanh                whether gelu is the approximation by tanh; else it is exact, by erf
    out       [N, F]
"""

import torch
from torch import Tensor


def gelu_mul_reference(gate_up: Tensor, tanh: bool) -> Tensor:
    """What `gelu_mul` computes."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    approximate = "tanh" if tanh else "none"
    activated = torch.nn.functional.gelu(gate, approximate=approximate)
    return (activated * up).to(gate_up.dtype)
