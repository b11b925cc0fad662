"""Attention over a paged KV cache in Triton; `attention.py` says what it computes.

Axes: S sequences, N tokens of the step, H query heads, G key/value heads, R = H / G query heads of
one of them, D head size, P blocks in the pool, B tokens in a block, T width of a block table,
C key/value heads of one launch, X splits of the context.

A program takes a tile of query tokens, all query heads of one key/value head, and one split of the
context (`attention_tile_triton.py`); `attention_plan.py` chooses their sizes. Where the grid has
several splits, a second launch adds them up (`attention_split_triton.py`).
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.attention_plan import (
    Plan,
    Schedule,
    groups_of_launch,
    make_plan,
    next_power_of_two,
)
from gpu_worker.kernels.attention_split_triton import SPLITS_AT_ONCE, add_splits_kernel
from gpu_worker.kernels.attention_tile_triton import attention_kernel

LOG2_E = 1.4426950408889634  # exponentials are to the base 2


def attention(
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
    schedule: Schedule | None = None,
) -> Tensor:
    num_rows, num_heads, head_size = q.shape
    _, num_groups, block_size, _ = k_cache.shape
    assert k_cache.shape == v_cache.shape
    assert num_heads % num_groups == 0
    assert scale > 0
    assert all(x.is_contiguous() for x in (q, k_cache, v_cache, cu_seqlens, lengths))
    scales = [x for x in (k_scale, v_scale) if x is not None]
    assert all(x.is_contiguous() and x.shape == (num_groups,) for x in scales)
    assert block_tables.stride(1) == 1

    heads_of_group = num_heads // num_groups
    cut = make_plan(
        num_rows,
        len(lengths),
        num_groups,
        heads_of_group,
        head_size,
        block_tables.shape[1] * block_size,
        schedule or schedule_of(q.device),
    )
    out = torch.empty_like(q)
    at_once = groups_of_launch(cut, num_rows, num_groups, heads_of_group * head_size * 4)
    for first_group in range(0, num_groups if num_rows else 0, at_once):
        count = min(at_once, num_groups - first_group)
        sizes = {"C": count, "G": num_groups, "R": heads_of_group, "D": head_size}
        sizes |= {"PADDED_D": max(16, next_power_of_two(head_size)), "WINDOW": window}
        acc, stats = _workspace(cut, q, count * heads_of_group)
        attention_kernel[(cut.num_tiles * count, cut.num_splits)](
            q,
            _readable(k_cache),
            _readable(v_cache),
            block_tables,
            cu_seqlens,
            lengths,
            k_scale,
            v_scale,
            out,
            acc,
            stats,
            # With a cap, scores are brought into (-1, 1) first and multiplied by it then.
            -2 * LOG2_E * scale / softcap if softcap else 1.0,
            softcap * LOG2_E if softcap else scale * LOG2_E,
            block_tables.stride(0),
            len(lengths),
            num_rows,
            cut.split_tokens,
            first_group,
            **sizes,
            B=block_size,
            TILE=cut.tokens_of_tile,
            M=cut.rows,
            L=cut.tile.tokens,
            IS_SPLIT=cut.num_splits > 1,
            IS_CAPPED=softcap > 0,
            DOT=_dot_type(q, k_cache),
            num_warps=cut.tile.warps,
            num_stages=1 if k_cache.dtype == torch.float32 else cut.tile.stages,
        )
        if cut.num_splits > 1:
            add_splits_kernel[(num_rows, count * heads_of_group)](
                acc,
                stats,
                cu_seqlens,
                lengths,
                v_scale,
                out,
                len(lengths),
                num_rows,
                cut.split_tokens,
                first_group,
                **sizes,
                AT_ONCE=SPLITS_AT_ONCE,
                num_warps=2,
            )
    return out


def fixed_attention(
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
    """The same in one order of sums: a row has the same bits in every step."""
    step = (q, k_cache, v_cache, block_tables, cu_seqlens, lengths, scale)
    schedule = schedule_of(q.device, deterministic=True)
    return attention(*step, window, softcap, k_scale, v_scale, schedule)


@cache
def schedule_of(device: torch.device, deterministic: bool = False) -> Schedule:
    """The schedule for a device; the interpreter takes an H200's."""
    if device.type != "cuda":
        return Schedule(deterministic=deterministic)
    num_processors = torch.cuda.get_device_properties(device).multi_processor_count
    if torch.version.hip:
        target = "cdna"
    else:
        generation = torch.cuda.get_device_capability(device)[0]
        target = "ampere" if generation < 9 else "hopper" if generation < 10 else "blackwell"
    return Schedule(num_processors, target, deterministic)


def _workspace(cut: Plan, q: Tensor, heads: int) -> tuple[Tensor | None, Tensor | None]:
    """Room for the parts of `heads` query heads, if there are parts."""
    if cut.num_splits == 1:
        return None, None
    shape = (cut.num_splits, len(q), heads)
    acc = torch.empty((*shape, q.shape[2]), dtype=torch.float32, device=q.device)
    return acc, torch.empty((*shape, 2), dtype=torch.float32, device=q.device)


def _readable(cache: Tensor) -> Tensor:
    """The cache as the device can load it: before compute capability 8.9 there is no e4m3."""
    if cache.dtype != torch.float8_e4m3fn or _has_e4m3(cache.device):
        return cache
    return cache.view(torch.uint8)


def _has_e4m3(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)


def _dot_type(q: Tensor, cache: Tensor) -> tl.dtype:
    """What products are made of: float16 for a cache of e4m3, which the hardware widens to it.

    Queries of a bfloat16 model beyond 65504 would be infinite then; none are. Triton's interpreter
    multiplies bfloat16 as integers: float32 there.
    """
    if triton.knobs.runtime.interpret:
        return tl.float32
    types = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
    if cache.dtype == torch.float8_e4m3fn and q.dtype != torch.float32:
        return tl.float16
    return types[q.dtype]
