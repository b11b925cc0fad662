"""Memory for packed weights, in huge pages where the system has them.

Each step reads all weights from one end to the other. In pages of 4 KiB every page is looked up,
and the processor fetches ahead within a page only: huge pages made it a quarter faster (Zen 4).
"""

import contextlib
import mmap

import numpy as np
import torch
from torch import Tensor

CHUNK_BYTES = 256 << 20  # of address space: memory is taken when it is written to
HUGE_PAGE_BYTES, ALIGNMENT = 2 << 20, 64


class Arena:
    """Gives out pieces of large chunks; a chunk is freed when the last of its pieces is."""

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """[count] of `dtype`, at the start of a cache line."""
        num_bytes = count * dtype.itemsize
        taken = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        if taken > len(self._rest):
            self._rest = _chunk(max(taken, CHUNK_BYTES))
        piece, self._rest = self._rest[:num_bytes], self._rest[taken:]
        return piece.view(dtype)


def _chunk(num_bytes: int) -> Tensor:
    """[num_bytes] uint8, zeros, at the start of a huge page."""
    region = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # a system without them
        region.madvise(mmap.MADV_HUGEPAGE)
    values = np.frombuffer(region, np.uint8)
    start = -values.ctypes.data % HUGE_PAGE_BYTES
    return torch.from_numpy(values[start : start + num_bytes])
