"""Inputs for the kernels: ragged steps over a cache that is NaN wherever nothing was written."""

from dataclasses import dataclass

import torch
from torch import Tensor

NUM_SPARE_BLOCKS = 3


@dataclass(frozen=True)
class Shape:
    heads: int
    groups: int
    head_size: int
    block_size: int


@dataclass(frozen=True)
class Step:
    """What `attention` takes, sequences as (query rows, cached tokens)."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    cu_seqlens: Tensor
    lengths: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (
            self.q,
            self.k_cache,
            self.v_cache,
            self.block_tables,
            self.cu_seqlens,
            self.lengths,
        )


def make_step(
    sequences: list[tuple[int, int]], shape: Shape, dtype: torch.dtype, seed: int = 0
) -> Step:
    generator = torch.Generator().manual_seed(seed)
    size = shape.block_size
    counts = [-(-length // size) for _, length in sequences]
    num_blocks = sum(counts) + NUM_SPARE_BLOCKS
    order = torch.randperm(num_blocks, generator=generator).tolist()
    # Entries beyond a sequence's blocks are never to be looked at.
    tables = torch.full((len(sequences), max(counts) + 1), -(1 << 30), dtype=torch.int32)
    caches = [
        torch.full((num_blocks, shape.groups, size, shape.head_size), torch.nan) for _ in range(2)
    ]
    for s, (_, length) in enumerate(sequences):
        for i in range(counts[s]):
            block = tables[s, i] = order.pop()
            filled = min(size, length - i * size)
            for cache in caches:
                part = cache[block, :, :filled]
                part.copy_(torch.randn(part.shape, generator=generator))
    num_rows = [rows for rows, _ in sequences]
    q = torch.randn(sum(num_rows), shape.heads, shape.head_size, generator=generator)
    return Step(
        q.to(dtype),
        caches[0].to(dtype),
        caches[1].to(dtype),
        tables,
        torch.tensor([0, *num_rows]).cumsum(0).int(),
        torch.tensor([length for _, length in sequences]).int(),
    )


def naive_attention(step: Step, scale: float, window: int = 0) -> Tensor:
    """One row and one head at a time, in float64: slow, and obviously right."""
    out = torch.empty_like(step.q, dtype=torch.float64)
    block_size, num_groups = step.k_cache.shape[2], step.k_cache.shape[1]
    heads_of_group = step.q.shape[1] // num_groups
    for s, length in enumerate(step.lengths.tolist()):
        start, stop = step.cu_seqlens[s : s + 2].tolist()
        for row in range(start, stop):
            last = length - (stop - row)
            first = max(0, last - window + 1) if window else 0
            slots = [
                (int(step.block_tables[s, t // block_size]), t % block_size)
                for t in range(first, last + 1)
            ]
            for h in range(step.q.shape[1]):
                g = h // heads_of_group
                keys = torch.stack([step.k_cache[b, g, o] for b, o in slots]).double()
                values = torch.stack([step.v_cache[b, g, o] for b, o in slots]).double()
                weights = (keys @ step.q[row, h].double() * scale).softmax(0)
                out[row, h] = weights @ values
    return out
