"""On which machine, when and at which commit something was measured, in words."""

import contextlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]


def machine() -> str:
    """Processor, cores and memory."""
    model = platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{model}, {cores} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}"


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def commit() -> str:
    """Empty where this is no checkout."""
    command = ["git", "rev-parse", "--short=10", "HEAD"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def others_load() -> float:
    """Processes that wanted a core in the last minute, on the average."""
    return os.getloadavg()[0]
