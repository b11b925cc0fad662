"""Rotary embedding and cache write in Triton; `rotary_kv_write.py` says what they compute.

Axes: N tokens of the step, H query heads, G key/value heads, D head size, P blocks in the pool,
B tokens in a block, M positions, W dimensions of a head that are rotated, T heads of a tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.fp8_triton import to_fp8


def rotary_kv_write(
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
    num_rows, rotated = len(qkv), cos_sin.shape[1]
    _, num_groups, block_size, head_size = k_cache.shape
    num_heads = qkv.shape[1] // head_size - 2 * num_groups
    is_fp8 = k_cache.dtype == torch.float8_e4m3fn
    assert qkv.stride(1) == 1
    assert all(x.is_contiguous() for x in (cos_sin, positions, slot_mapping, k_cache, v_cache))
    assert k_cache.dtype == v_cache.dtype
    assert all(x is None or len(x.view(-1)) == num_groups for x in (k_scale, v_scale))
    assert is_fp8 or (k_scale is None and v_scale is None)
    assert rotated % 2 == 0
    assert rotated <= head_size
    q = qkv.new_empty(num_rows, num_heads, head_size)
    if num_rows:
        tile = tile_of(num_heads)
        tiles = triton.cdiv(num_heads, tile) + 2 * triton.cdiv(num_groups, tile)
        _rotary_kv_write_kernel[(num_rows, tiles)](
            qkv,
            qkv.stride(0),
            cos_sin,
            positions,
            qkv if q_norm is None else q_norm,
            qkv if k_norm is None else k_norm,
            eps,
            k_cache.view(torch.uint8) if is_fp8 else k_cache,
            v_cache.view(torch.uint8) if is_fp8 else v_cache,
            slot_mapping,
            k_scale,
            v_scale,
            q,
            HAS_Q_NORM=q_norm is not None,
            HAS_K_NORM=k_norm is not None,
            FP8=is_fp8,
            H=num_heads,
            G=num_groups,
            D=head_size,
            W=rotated,
            B=block_size,
            T=tile,
            num_warps=warps_of(tile, rotated),
        )
    return q


def tile_of(num_heads: int) -> int:
    """Heads that a program takes together: they share one position's cosines."""
    return min(8, int(triton.next_power_of_2(num_heads)))


def warps_of(tile: int, rotated: int) -> int:
    """So many that a thread has 8 values: 16 bytes of bfloat16, one load."""
    return max(1, min(4, tile * int(triton.next_power_of_2(rotated // 2)) // 256))


@triton.jit
def _rotary_kv_write_kernel(
    qkv_ptr,
    qkv_stride,
    cos_sin_ptr,
    positions_ptr,
    q_norm_ptr,
    k_norm_ptr,
    eps,
    k_cache_ptr,
    v_cache_ptr,
    slot_mapping_ptr,
    k_scale_ptr,
    v_scale_ptr,
    q_ptr,
    HAS_Q_NORM: tl.constexpr,
    HAS_K_NORM: tl.constexpr,
    FP8: tl.constexpr,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    W: tl.constexpr,
    B: tl.constexpr,
    T: tl.constexpr,
):
    """One program for T heads of one token, all of them queries, or keys, or values."""
    Q_TILES: tl.constexpr = (H + T - 1) // T
    KV_TILES: tl.constexpr = (G + T - 1) // T
    n = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    row_ptr = qkv_ptr + n * qkv_stride
    t = tl.arange(0, T)[:, None]  # [T, 1]
    angle_ptr = cos_sin_ptr + tl.load(positions_ptr + n).to(tl.int64) * W
    if tile < Q_TILES:
        h = tile * T + t
        to_ptr = q_ptr + (n * H + h) * D
        _rotate(
            row_ptr + h * D, to_ptr, h < H, q_norm_ptr, angle_ptr, eps, 1.0, HAS_Q_NORM, False, D, W
        )
    else:
        slot = tl.load(slot_mapping_ptr + n)
        if slot >= 0:
            g = (tile - Q_TILES) % KV_TILES * T + t
            cached = ((slot // B * G + g) * B + slot % B) * D  # [T, 1]
            if tile < Q_TILES + KV_TILES:
                from_ptr = row_ptr + (H + g) * D
                to_ptr = k_cache_ptr + cached
                _rotate(
                    from_ptr,
                    to_ptr,
                    g < G,
                    k_norm_ptr,
                    angle_ptr,
                    eps,
                    _scales(k_scale_ptr, g, G),
                    HAS_K_NORM,
                    FP8,
                    D,
                    W,
                )
            else:
                from_ptr = row_ptr + (H + G + g) * D
                scale = _scales(v_scale_ptr, g, G)
                _copy(from_ptr, v_cache_ptr + cached, g < G, scale, FP8, D)


@triton.jit
def _rotate(
    from_ptr,
    to_ptr,
    is_head,
    norm_ptr,
    angle_ptr,
    eps,
    scale,
    HAS_NORM: tl.constexpr,
    FP8: tl.constexpr,
    D: tl.constexpr,
    W: tl.constexpr,
):
    """Heads at from_ptr [T, 1], normalised where there are weights, and rotated, to to_ptr."""
    HALF: tl.constexpr = W // 2
    PADDED: tl.constexpr = triton.next_power_of_2(HALF)
    d = tl.arange(0, PADDED)  # [W/2]
    is_inside = d < HALF
    mask = is_head & is_inside[None, :]
    low = tl.load(from_ptr + d[None, :], mask=mask, other=0.0).to(tl.float32)
    high = tl.load(from_ptr + HALF + d[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_NORM:
        squares = tl.sum(low * low + high * high, axis=1)  # [T]
        if W < D:
            rest = _rest(from_ptr, is_head, D, W)
            squares += tl.sum(rest * rest, axis=1)
        norm = tl.rsqrt(squares / D + eps)[:, None]
        low *= norm * tl.load(norm_ptr + d, mask=is_inside, other=0.0).to(tl.float32)[None, :]
        high *= (
            norm * tl.load(norm_ptr + HALF + d, mask=is_inside, other=0.0).to(tl.float32)[None, :]
        )
    cos = tl.load(angle_ptr + d, mask=is_inside, other=0.0)[None, :]
    sin = tl.load(angle_ptr + HALF + d, mask=is_inside, other=0.0)[None, :]
    _put(to_ptr + d[None, :], low * cos - high * sin, mask, scale, FP8)
    _put(to_ptr + HALF + d[None, :], high * cos + low * sin, mask, scale, FP8)
    if W < D:
        d = W + tl.arange(0, triton.next_power_of_2(D - W))
        rest = _rest(from_ptr, is_head, D, W)
        if HAS_NORM:
            rest *= norm * tl.load(norm_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
        _put(to_ptr + d[None, :], rest, is_head & (d < D)[None, :], scale, FP8)


@triton.jit
def _rest(from_ptr, is_head, D: tl.constexpr, W: tl.constexpr):
    """The dimensions [W, D) of heads, float32."""
    d = W + tl.arange(0, triton.next_power_of_2(D - W))
    return tl.load(from_ptr + d[None, :], mask=is_head & (d < D)[None, :], other=0.0).to(tl.float32)


@triton.jit
def _copy(from_ptr, to_ptr, is_head, scale, FP8: tl.constexpr, D: tl.constexpr):
    """Heads at from_ptr [T, 1] to to_ptr."""
    d = tl.arange(0, triton.next_power_of_2(D))  # [D]
    mask = is_head & (d < D)[None, :]
    _put(to_ptr + d[None, :], tl.load(from_ptr + d[None, :], mask=mask), mask, scale, FP8)


@triton.jit
def _scales(scale_ptr, g, G: tl.constexpr):
    """What keys or values of the heads g [T, 1] are divided by; 1 where nothing says it."""
    scale = tl.full(g.shape, 1.0, tl.float32)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + g, mask=g < G, other=1.0)
    return scale


@triton.jit
def _put(to_ptr, values, mask, scale, FP8: tl.constexpr):
    if FP8:
        tl.store(to_ptr, to_fp8(tl.div_rn(values.to(tl.float32), scale)), mask=mask)
    else:
        tl.store(to_ptr, values, mask=mask)
