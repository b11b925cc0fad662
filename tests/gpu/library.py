"""The kernels' work as torch has it, for comparison: over contiguous keys and values, and compiled.

Axes: S sequences, N tokens, H query heads, G key/value heads, D head size, L keys.
"""

import torch
from torch import Tensor
from torch.nn import functional


def decode_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One row q [S, H, D] of each sequence over keys and values [S, G, L, D] that lie in a row."""
    return functional.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)


def prompt_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All rows q [H, N, D] of one prompt over its keys and values [G, N, D]."""
    return functional.scaled_dot_product_attention(
        q[None], k[None], v[None], is_causal=True, enable_gqa=True
    )


def add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return functional.rms_norm(total, (x.shape[1],), weight, 1e-5), total


def gated(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def rotate_and_write(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block: Tensor,
    offset: Tensor,
) -> Tensor:
    """Queries [N, H, D] rotated; keys and values into blocks of the caches [P, G, B, D]."""
    groups, size = k_cache.shape[1], k_cache.shape[3]
    heads = qkv.view(len(qkv), -1, size)
    q, k, v = heads.split([heads.shape[1] - 2 * groups, groups, groups], dim=1)
    cos, sin = cos_sin[positions][:, None].chunk(2, dim=-1)
    k_cache[block, :, offset] = _rotated(k, cos, sin)
    v_cache[block, :, offset] = v
    return _rotated(q, cos, sin)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)
