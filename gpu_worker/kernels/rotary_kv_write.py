"""Rotary embedding of the step's queries and keys, and their keys and values into the cache.

Axes: N tokens of the step, H query heads, G key/value heads, D head size, P blocks in the pool,
B tokens in a block, M positions, W dimensions of a head that are rotated.

    qkv             [N, (H + 2G) * D]
    cos_sin         [M, W]        float32; W/2 cosines, then W/2 sines of one position
    positions       [N]           int32
    q, k norm       [D] or None   weights of an RMS norm over each head, before the rotation
    k, v cache      [P, G, B, D]  written in place; like qkv or float8_e4m3fn
    slot_mapping    [N]           int64; block * B + offset of the token; below 0: not written
    k, v scale      [G] or None   float32; a float8 cache holds keys and values divided by these
    out             [N, H, D]     the queries

The rotation pairs dimension d with d + W/2; dimensions from W on stay as they are.
"""

import torch
from torch import Tensor

from gpu_worker.kernels.fp8 import to_fp8_reference


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
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """What `rotary_kv_write` does."""
    _, num_groups, block_size, head_size = k_cache.shape
    heads = qkv.view(len(qkv), -1, head_size)  # [N, H + 2G, D]
    q, k, v = torch.split(heads, [heads.shape[1] - 2 * num_groups, num_groups, num_groups], dim=1)
    cos, sin = cos_sin[positions.long()][:, None].chunk(2, dim=-1)  # [N, 1, W/2]
    q = _rotate(_norm(q.float(), q_norm, eps), cos, sin).to(qkv.dtype)
    k = _rotate(_norm(k.float(), k_norm, eps), cos, sin)
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    block, offset = slots // block_size, slots % block_size
    k_cache[block, :, offset] = _as_cached(k[written], k_cache.dtype, k_scale)
    v_cache[block, :, offset] = _as_cached(v[written], v_cache.dtype, v_scale)
    return q


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    low, high, rest = torch.split(x, [half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin, rest), dim=-1)


def _as_cached(x: Tensor, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """Heads x [n, G, D] as the cache holds them."""
    if dtype != torch.float8_e4m3fn:
        return x.to(dtype)
    return to_fp8_reference(x.float() if scale is None else x.float() / scale[:, None])
