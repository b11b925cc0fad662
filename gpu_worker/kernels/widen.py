"""Weights of four or eight bits as numbers of 16 or 32, for products over many rows.

Axes: I inputs, O outputs, Q inputs of a group, J = I / Q groups, P planes.

    packed    [P J, O, Q / 2]   uint8, as `int4_matmul.py` has it; plane after plane
    scale     [P J, O]          float32
    zero      [P J, O]          float32
    values    [O, I]            int8, or float8_e4m3fn without NaN; with a scale [O]
    out       [O, I]            of four bits: the sum over planes of (level - zero) * scale
                                of eight: values * scale

Two planes are weights of eight bits in groups: their high halves, and their low ones.
"""

import torch
from torch import Tensor


def widen_int4_reference(
    packed: Tensor, scale: Tensor, zero: Tensor, planes: int, dtype: torch.dtype
) -> Tensor:
    """What `widen_int4` computes; group by group, so that little memory is in use beside `out`."""
    num_groups, num_out, half = len(packed) // planes, *packed.shape[1:]
    out = torch.empty(num_out, num_groups, 2 * half, dtype=dtype, device=packed.device)
    for j in range(num_groups):
        terms = (
            torch.cat((packed[group] & 15, packed[group] >> 4), dim=-1)  # [O, Q]
            .float()
            .sub_(zero[group, :, None])
            .mul_(scale[group, :, None])
            for group in range(j, len(packed), num_groups)
        )
        out[:, j] = sum(terms)
    return out.flatten(1)


def widen_bytes_reference(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """What `widen_bytes` computes; some outputs at a time, for the same reason."""
    out = torch.empty(values.shape, dtype=dtype, device=values.device)
    for start in range(0, len(values), 1024):
        rows = slice(start, start + 1024)
        out[rows] = values[rows].float() * scale[rows, None]
    return out
