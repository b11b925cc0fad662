"""Blocks in host memory, where those of preempted rows wait until they are swapped in again.

Axes: L layers, Q blocks in the pool, G key/value heads, B tokens in a block, D head size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from common.messages import HostBlockId, Swap
from gpu_worker.engine import EngineError
from gpu_worker.kv_cache import KVCache
from gpu_worker.ops import BlockCopy


class HostPool:
    """Memory is taken at the first swap: many workers never swap."""

    def __init__(self, cache: KVCache, num_blocks: int, copy: BlockCopy) -> None:
        self._cache = cache
        self._num_blocks = num_blocks
        self._copy = copy
        self._blocks: KVCache | None = None
        self._filled: set[HostBlockId] = set()

    def swap_out(self, pairs: Sequence[Swap]) -> None:
        """Copy (device block, host block) to the host. Raises EngineError, and copies nothing,
        where one of them cannot be."""
        self._check(pairs, "out", [host_block for _, host_block in pairs])
        if self._blocks is None:
            self._blocks = self._allocate()
        self._copy_all(self._cache, self._blocks, torch.tensor(pairs))
        self._filled.update(host_block for _, host_block in pairs)

    def swap_in(self, pairs: Sequence[Swap]) -> None:
        """Copy (device block, host block) back. Raises EngineError as `swap_out` does."""
        self._check(pairs, "in", [block for block, _ in pairs])
        empty = [host_block for _, host_block in pairs if host_block not in self._filled]
        if empty or self._blocks is None:
            raise EngineError(f"the plan swaps in host blocks that hold nothing: {empty}")
        self._copy_all(self._blocks, self._cache, torch.tensor(pairs).flip(1))

    def forget(self) -> None:
        """Nothing that was swapped out is wanted any more; the memory stays."""
        self._filled.clear()

    def _copy_all(self, source: KVCache, target: KVCache, pairs: Tensor) -> None:
        self._copy(source.k, target.k, pairs)
        self._copy(source.v, target.v, pairs)

    def _check(self, pairs: Sequence[Swap], way: str, written: Sequence[int]) -> None:
        num_device = self._cache.k.shape[1]
        for block, host_block in pairs:
            if not (0 <= block < num_device and 0 <= host_block < self._num_blocks):
                raise EngineError(
                    f"the plan swaps {way} block {block} and host block {host_block}; there are "
                    f"{num_device} and {self._num_blocks}"
                )
        if len(set(written)) < len(written):
            raise EngineError(f"the plan swaps {way} into one block twice: {sorted(written)}")

    def _allocate(self) -> KVCache:
        """[L, Q, G, B, D] twice; pinned where a GPU copies, which rounds it up to powers of two."""
        like = self._cache.k
        shape = (like.shape[0], self._num_blocks, *like.shape[2:])
        k, v = (torch.empty(shape, dtype=like.dtype, pin_memory=like.is_cuda) for _ in range(2))
        return KVCache(k, v)
