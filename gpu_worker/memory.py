"""How much memory is free, as the kernel, the container and the GPU say."""

import contextlib
import ctypes
import os
import resource
from pathlib import Path

import torch

STATM = Path("/proc/self/statm")
CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def free_bytes(device: torch.device) -> int:
    """Free memory of a device; on a CPU the less of what machine and container have left."""
    if device.type != "cpu":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return min(_machine_free(), _container_free())


def resident_bytes(device: torch.device) -> int:
    """What this process holds now."""
    if device.type != "cpu":
        return torch.cuda.memory_allocated(device)
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def peak_bytes(device: torch.device) -> int:
    """The most that this process held at any time."""
    if device.type != "cpu":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_peak(device: torch.device) -> None:
    """Let the peak begin anew; on a CPU it cannot."""
    if device.type != "cpu":
        torch.cuda.reset_peak_memory_stats(device)


def give_back() -> None:
    """Let the system have what this process has freed, where the C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _machine_free() -> int:
    if MEMINFO.exists():
        lines = (line.split() for line in MEMINFO.read_text().splitlines())
        return next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _container_free() -> int:
    """What the limit of this container's memory leaves; of cgroups of both versions."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            text = (CGROUP / limit).read_text().strip()
            if text.isdigit():
                return int(text) - int((CGROUP / used).read_text())
        except OSError:
            continue
    return 1 << 62
