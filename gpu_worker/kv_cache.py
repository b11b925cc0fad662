"""The paged K and V tensors, and how many blocks fit into the memory there is.

Axes: L layers, P blocks in the pool, G key/value heads, B tokens in a block, D head size.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.engine import EngineError
from gpu_worker.huge_pages import reserve
from gpu_worker.model_config import ModelConfig

GIB = 1 << 30


@dataclass(frozen=True)
class KVCache:
    k: Tensor  # [L, P, G, B, D]
    v: Tensor  # [L, P, G, B, D]

    @staticmethod
    def allocate(
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "KVCache":
        """Zeros, so that the memory is taken now and not hours later."""
        shape = (config.num_layers, num_blocks, config.num_groups, block_size, config.head_size)
        if device.type != "cpu":
            k, v = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
            return KVCache(k, v)
        num_bytes = math.prod(shape) * dtype.itemsize
        k, v = (reserve(num_bytes).zero_().view(dtype).view(shape) for _ in range(2))
        return KVCache(k, v)


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block in all layers, K and V."""
    numbers = 2 * config.num_layers * config.num_groups * block_size * config.head_size
    return numbers * dtype.itemsize


def fit_host_blocks(swap_bytes: int, bytes_per_block: int, free_bytes: int) -> int:
    """Blocks for swapping: as `swap_bytes` hold, but no more than half of what is free.

    They are no condition for a start: with few of them, or none, rows are computed anew instead.
    """
    return max(0, min(swap_bytes, free_bytes // 2)) // bytes_per_block


def fit_blocks(num_blocks: int, kv_bytes: int, bytes_per_block: int, free_bytes: int) -> int:
    """Blocks of the cache: as many as asked for, else as `kv_bytes` hold.

    Raises EngineError where they do not fit into `free_bytes`, or where that is not one block.
    """
    blocks = num_blocks or kv_bytes // bytes_per_block
    if blocks < 1:
        raise EngineError(
            f"a block of the KV cache takes {bytes_per_block:,} bytes, and the cache is to have "
            f"{kv_bytes:,}: raise --kv-bytes or lower --block-size"
        )
    if (needed := blocks * bytes_per_block) > free_bytes:
        raise EngineError(
            f"the KV cache of {blocks:,} blocks takes {needed / GIB:.2f} GiB, and "
            f"{max(0, free_bytes) / GIB:.2f} GiB are free: lower --kv-bytes or --num-blocks"
        )
    return blocks
