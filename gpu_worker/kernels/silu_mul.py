"""The gated activation of the feed-forward layer: silu(gate) * up.

Axes: N tokens of the step, F feed-forward width.

    gate_up   [N, 2F]   the gate first
    out       [N, F]
"""

import torch
from torch import Tensor


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """What `silu_mul` computes."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)
