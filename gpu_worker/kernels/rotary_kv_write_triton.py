"""Rotary embedding and cache write in Triton; `rotary_kv_write.py` says what they compute.

Axes: N tokens of the step, H query heads, G key/value heads, D head size, P blocks in the pool,
B tokens in a block, M positions.
"""

import triton
import triton.language as tl
from torch import Tensor


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
) -> Tensor:
    num_rows = len(qkv)
    _, num_groups, block_size, head_size = k_cache.shape
    num_heads = qkv.shape[1] // head_size - 2 * num_groups
    assert all(x.is_contiguous() for x in (qkv, cos_sin, positions, slot_mapping))
    assert k_cache.is_contiguous()
    assert v_cache.is_contiguous()
    assert head_size == triton.next_power_of_2(head_size), f"head size {head_size}"
    q = qkv.new_empty(num_rows, num_heads, head_size)
    if num_rows:
        _rotary_kv_write_kernel[(num_rows, num_heads + 2 * num_groups)](
            qkv,
            cos_sin,
            positions,
            qkv if q_norm is None else q_norm,
            qkv if k_norm is None else k_norm,
            eps,
            k_cache,
            v_cache,
            slot_mapping,
            q,
            HAS_Q_NORM=q_norm is not None,
            HAS_K_NORM=k_norm is not None,
            H=num_heads,
            G=num_groups,
            D=head_size,
            B=block_size,
        )
    return q


@triton.jit
def _rotary_kv_write_kernel(
    qkv_ptr,
    cos_sin_ptr,
    positions_ptr,
    q_norm_ptr,
    k_norm_ptr,
    eps,
    k_cache_ptr,
    v_cache_ptr,
    slot_mapping_ptr,
    q_ptr,
    HAS_Q_NORM: tl.constexpr,
    HAS_K_NORM: tl.constexpr,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    """One program for one head of one token: a query, a key or a value."""
    n = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row_ptr = qkv_ptr + (n * (H + 2 * G) + head) * D
    slot = tl.load(slot_mapping_ptr + n)
    position = tl.load(positions_ptr + n)
    if head < H:
        low, high = _rotated(row_ptr, q_norm_ptr, cos_sin_ptr + position * D, eps, HAS_Q_NORM, D)
        _store_halves(q_ptr + (n * H + head) * D, low, high, D)
    elif slot >= 0:
        g = (head - H) % G
        cache_offset = ((slot // B * G + g) * B + slot % B) * D
        if head < H + G:
            low, high = _rotated(
                row_ptr, k_norm_ptr, cos_sin_ptr + position * D, eps, HAS_K_NORM, D
            )
            _store_halves(k_cache_ptr + cache_offset, low, high, D)
        else:
            d = tl.arange(0, D)
            tl.store(v_cache_ptr + cache_offset + d, tl.load(row_ptr + d))


@triton.jit
def _rotated(row_ptr, norm_ptr, cos_sin_ptr, eps, HAS_NORM: tl.constexpr, D: tl.constexpr):
    """The two halves of a head, normalised where there are weights, and rotated."""
    d = tl.arange(0, D // 2)  # [D/2]
    low = tl.load(row_ptr + d).to(tl.float32)
    high = tl.load(row_ptr + D // 2 + d).to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(low * low + high * high, axis=0) / D + eps)
        low = low * scale * tl.load(norm_ptr + d).to(tl.float32)
        high = high * scale * tl.load(norm_ptr + D // 2 + d).to(tl.float32)
    cos = tl.load(cos_sin_ptr + d)
    sin = tl.load(cos_sin_ptr + D // 2 + d)
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def _store_halves(out_ptr, low, high, D: tl.constexpr):
    d = tl.arange(0, D // 2)  # [D/2]
    tl.store(out_ptr + d, low)
    tl.store(out_ptr + D // 2 + d, high)
