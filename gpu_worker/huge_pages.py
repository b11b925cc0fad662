"""Memory of this machine in huge pages, where the system has them.

What a step reads, weights and cache, is far more than the processor can look up pages of 4 KiB for;
and it fetches ahead within a page only.
"""

import contextlib
import mmap

import numpy as np
import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20


def reserve(num_bytes: int) -> Tensor:
    """[num_bytes] uint8, zeros, from the start of a huge page; taken when it is written to."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    region = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=flags)
    with contextlib.suppress(OSError, AttributeError):  # a system without them
        region.madvise(mmap.MADV_HUGEPAGE)
    values = np.frombuffer(region, np.uint8)
    start = -values.ctypes.data % HUGE_PAGE_BYTES
    return torch.from_numpy(values[start : start + num_bytes])
