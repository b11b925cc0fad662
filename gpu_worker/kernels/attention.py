"""Attention over a paged KV cache, for decoding rows and chunks of prompts in one call.

Axes: S sequences, N tokens of the step, H query heads, G key/value heads, D head size,
P blocks in the pool, B tokens in a block, T width of a block table.

    q              [N, H, D]     rows of one sequence lie together, in order of position
    k, v cache     [P, G, B, D]  like q, or float8_e4m3fn
    block_tables   [S, T]        int32; row s lists the blocks of sequence s, in order
    cu_seqlens     [S + 1]       int32; sequence s has the rows [cu_seqlens[s], cu_seqlens[s + 1])
    lengths        [S]           int32; cached tokens of sequence s, its rows included
    k, v scale     [G]           float32, or None; what a cached number is to be multiplied with
    out            [N, H, D]     like q

The rows of a sequence are the last of its cached tokens, and see what lies before them and
themselves. With a window they see the last `window` of that only. With a soft cap a score x becomes
softcap * tanh(x / softcap). Rows behind the last sequence's belong to nobody, and are not written:
a step may be padded, with sequences that have neither rows nor tokens, to a batch size of a graph.

Scales are per head, not per tensor: heads differ in range by more than e4m3 has room for, and a
scale costs one number for a tile. One scale for a tensor is that scale G times.
"""

import torch
from torch import Tensor


def attention_reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    cu_seqlens: Tensor,
    lengths: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """What `attention` computes, one sequence at a time in float32."""
    out = torch.empty_like(q)
    starts = cu_seqlens.tolist()
    for s, length in enumerate(lengths.tolist()):
        start, stop = starts[s], starts[s + 1]
        if start == stop:
            continue
        first = max(0, length - (stop - start) - window + 1) if window else 0
        keys = _gather(k_cache, k_scale, block_tables[s], first, length)
        values = _gather(v_cache, v_scale, block_tables[s], first, length)
        rows = q[start:stop].float() * scale
        out[start:stop] = _attend(rows, keys, values, window, softcap).to(q.dtype)
    return out


def _gather(
    cache: Tensor, scale: Tensor | None, block_table: Tensor, start: int, stop: int
) -> Tensor:
    """The cached tokens [start, stop) of one sequence, as float32 [G, stop - start, D]."""
    block_size = cache.shape[2]
    first = start // block_size
    blocks = block_table[first : -(-stop // block_size)].long()
    tokens = cache[blocks].transpose(0, 1).flatten(1, 2)  # [G, blocks * B, D]
    tokens = tokens[:, start - first * block_size : stop - first * block_size].float()
    return tokens if scale is None else tokens * scale[:, None, None]


def _attend(rows: Tensor, keys: Tensor, values: Tensor, window: int, softcap: float) -> Tensor:
    """Attention of the last rows [n, H, D] over keys and values [G, length, D]; [n, H, D]."""
    n, num_heads, head_size = rows.shape
    num_groups, length, _ = keys.shape
    grouped = rows.transpose(0, 1).reshape(num_groups, -1, head_size)  # [G, H / G * n, D]
    scores = (grouped @ keys.transpose(1, 2)).view(num_heads, n, length)
    if softcap:
        scores = (scores / softcap).tanh_().mul_(softcap)
    position = torch.arange(length - n, length, device=rows.device)[:, None]
    key_position = torch.arange(length, device=rows.device)
    hidden = key_position > position
    if window:
        hidden |= key_position <= position - window
    weights = scores.masked_fill_(hidden, -torch.inf).softmax(-1)  # [H, n, length]
    out = weights.view(num_groups, -1, length) @ values  # [G, H / G * n, D]
    return out.view(num_heads, n, head_size).transpose(0, 1)
