"""Attention over a paged KV cache in Triton; `attention.py` says what it computes.

Axes: S sequences, N tokens of the step, H query heads, G key/value heads, D head size,
P blocks in the pool, B tokens in a block, T width of a block table.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS = 32  # keys that a program takes at a time


def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    cu_seqlens: Tensor,
    lengths: Tensor,
    scale: float,
    window: int = 0,
) -> Tensor:
    num_rows, num_heads, head_size = q.shape
    _, num_groups, block_size, _ = k_cache.shape
    assert k_cache.shape == v_cache.shape
    assert num_heads % num_groups == 0
    assert all(x.is_contiguous() for x in (q, k_cache, v_cache, cu_seqlens, lengths))
    assert block_tables.stride(1) == 1

    heads_of_group = num_heads // num_groups
    # 16 pairs of token and head, what a tensor core wants at least, or all heads of one token.
    tile = max(1, 16 // heads_of_group)
    out = torch.empty_like(q)
    if num_rows:
        grid = (num_rows // tile + len(lengths), num_groups)  # see _find_sequence
        _attention_kernel[grid](
            q,
            k_cache,
            v_cache,
            block_tables,
            cu_seqlens,
            lengths,
            out,
            scale * 1.4426950408889634,  # log2(e): the softmax is to the base 2
            block_tables.stride(0),
            len(lengths),
            WINDOW=window,
            G=num_groups,
            R=heads_of_group,
            D=head_size,
            B=block_size,
            TILE=tile,
            M=max(16, triton.next_power_of_2(tile * heads_of_group)),
            PADDED_D=max(16, triton.next_power_of_2(head_size)),
            L=TOKENS,
            WIDE=triton.knobs.runtime.interpret,
        )
    return out


@triton.jit
def _attention_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    block_tables_ptr,
    cu_seqlens_ptr,
    lengths_ptr,
    out_ptr,
    scale,
    table_stride,
    num_sequences,
    WINDOW: tl.constexpr,
    G: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
    TILE: tl.constexpr,
    M: tl.constexpr,
    PADDED_D: tl.constexpr,
    L: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program for TILE tokens of a sequence and the query heads of one key/value head.

    Its M rows are pairs of token and head. Invariant of the loop, over the keys seen so far:
    `peak` is a row's largest score, `total` the sum of 2^(score - peak), `acc` the sum of
    2^(score - peak) * value. WIDE is for the interpreter, which multiplies bf16 as integers.
    """
    g = tl.program_id(1)
    s = _find_sequence(tl.program_id(0), cu_seqlens_ptr, num_sequences, TILE)
    first_row = tl.load(cu_seqlens_ptr + s)
    num_rows = tl.load(cu_seqlens_ptr + s + 1) - first_row
    first = (tl.program_id(0) - first_row // TILE - s) * TILE  # of the tile, in the sequence
    if first >= num_rows:
        return

    m = tl.arange(0, M)  # [M]
    d = tl.arange(0, PADDED_D)  # [D]
    row = first + m // R  # [M] in the sequence
    is_row = (m < TILE * R) & (row < num_rows)
    q_offsets = (((first_row + row).to(tl.int64) * G + g) * R + m % R)[:, None] * D + d[None, :]
    q_mask = is_row[:, None] & (d < D)[None, :]
    q = tl.load(q_ptr + q_offsets, mask=q_mask, other=0.0)  # [M, D]
    if WIDE:
        q = q.to(tl.float32)

    length = tl.load(lengths_ptr + s)
    position = length - num_rows + row  # [M]
    end = tl.minimum(length, length - num_rows + first + TILE)
    begin = 0
    if WINDOW:
        begin = tl.maximum(0, length - num_rows + first - WINDOW + 1) // L * L

    peak = tl.full((M,), -1e30, tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, PADDED_D), tl.float32)
    for start in range(begin, end, L):
        t = start + tl.arange(0, L)  # [L]
        is_token = t < end
        if WINDOW:
            is_token &= t > length - num_rows + first - WINDOW
        block = tl.load(block_tables_ptr + s * table_stride + t // B, mask=is_token, other=0)
        cached = ((block.to(tl.int64) * G + g) * B + t % B)[:, None] * D + d[None, :]  # [L, D]
        cached_mask = is_token[:, None] & (d < D)[None, :]
        k = tl.load(k_cache_ptr + cached, mask=cached_mask, other=0.0)
        v = tl.load(v_cache_ptr + cached, mask=cached_mask, other=0.0)
        if WIDE:
            k, v = k.to(tl.float32), v.to(tl.float32)

        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [M, L]
        seen = t[None, :] <= position[:, None]
        if WINDOW:
            seen &= t[None, :] > position[:, None] - WINDOW
        scores = tl.where(seen, scores, -1e30)
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        weights = tl.where(seen, tl.exp2(scores - new_peak[:, None]), 0.0)
        rescale = tl.exp2(peak - new_peak)
        total = total * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None]
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
        peak = new_peak

    tl.store(out_ptr + q_offsets, acc / total[:, None], mask=q_mask)


@triton.jit
def _find_sequence(tile, cu_seqlens_ptr, num_sequences, TILE: tl.constexpr):
    """The sequence of a tile.

    How many tiles come before a sequence is not known without a sum over all; but if sequence s
    begins at tile cu_seqlens[s] // TILE + s, each has room enough, and a search finds it.
    """
    low = 0
    high = num_sequences
    while high - low > 1:  # sequence low begins at or before the tile, sequence high after it
        middle = (low + high) // 2
        if tl.load(cu_seqlens_ptr + middle) // TILE + middle <= tile:
            low = middle
        else:
            high = middle
    return low
