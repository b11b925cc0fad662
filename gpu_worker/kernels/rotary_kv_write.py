"""Rotary embedding of the step's queries and keys, and their keys and values into the cache.

Axes: N tokens of the step, H query heads, G key/value heads, D head size, P blocks in the pool,
B tokens in a block, M positions.

    qkv             [N, (H + 2G) * D]
    cos_sin         [M, D]        float32; D/2 cosines, then D/2 sines of one position
    positions       [N]           int32
    q, k norm       [D] or None   weights of an RMS norm over each head, before the rotation
    k, v cache      [P, G, B, D]  written in place
    slot_mapping    [N]           int64; block * B + offset of the token; below 0: not written
    out             [N, H, D]     the queries

The rotation pairs dimension d with d + D/2.
"""

import torch
from torch import Tensor


def rotary_kv_write_reference(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
) -> Tensor:
    """What `rotary_kv_write` does."""
    _, num_groups, block_size, head_size = k_cache.shape
    heads = qkv.view(len(qkv), -1, head_size)  # [N, H + 2G, D]
    q, k, v = torch.split(heads, [heads.shape[1] - 2 * num_groups, num_groups, num_groups], dim=1)
    cos, sin = cos_sin[positions.long()][:, None].chunk(2, dim=-1)  # [N, 1, D/2]
    q = _rotate(_norm(q.float(), q_norm, eps), cos, sin).to(qkv.dtype)
    k = _rotate(_norm(k.float(), k_norm, eps), cos, sin).to(qkv.dtype)
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    block, offset = slots // block_size, slots % block_size
    k_cache[block, :, offset] = k[written]
    v_cache[block, :, offset] = v[written]
    return q


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
