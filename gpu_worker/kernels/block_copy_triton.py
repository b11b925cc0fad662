"""Copies of blocks in Triton; `block_copy.py` says what they do.

Axes: L layers, P and Q blocks in the pools, N blocks to copy, E numbers of one block in one layer.

One of the pools may lie in pinned host memory: a kernel reads and writes it over the bus, so that
blocks that lie anywhere move with one launch, without a buffer in between. The copies are ordered
with everything else on the stream, and nobody waits for them.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


def block_copy(source: Tensor, target: Tensor, pairs: Tensor) -> None:
    num_layers, num_source = source.shape[:2]
    assert source.is_contiguous()
    assert target.is_contiguous()
    assert source.dtype == target.dtype
    assert target.shape[0] == num_layers
    assert target.shape[2:] == source.shape[2:]
    if not len(pairs):
        return
    on_device = pairs.to(target.device if target.is_cuda else source.device)
    _block_copy_kernel[(len(pairs), num_layers)](
        source,
        target,
        on_device.contiguous(),
        num_source,
        target.shape[1],
        E=source[0, 0].numel(),
        BLOCK=BLOCK,
    )


@triton.jit
def _block_copy_kernel(
    source_ptr,
    target_ptr,
    pairs_ptr,
    num_source,
    num_target,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program for one block in one layer."""
    n = tl.program_id(0)
    layer = tl.program_id(1).to(tl.int64)
    block = tl.load(pairs_ptr + 2 * n)
    to_block = tl.load(pairs_ptr + 2 * n + 1)
    from_ptr = source_ptr + (layer * num_source + block) * E
    to_ptr = target_ptr + (layer * num_target + to_block) * E
    for start in range(0, E, BLOCK):
        e = start + tl.arange(0, BLOCK)  # [BLOCK]
        inside = e < E
        tl.store(to_ptr + e, tl.load(from_ptr + e, mask=inside), mask=inside)
