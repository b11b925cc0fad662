"""On which machine, when and at which commit something was measured, in words."""

import contextlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("cli", "common", "gateway", "gpu_worker", "scheduler")


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
    """And whether the code differs from it; empty where this is no checkout."""
    try:
        done = _git("rev-parse", "--short=10", "HEAD")
        is_changed = _git("diff", "--quiet", "HEAD", "--", *CODE).returncode == 1
    except OSError:
        return ""
    return done.stdout.strip() + (" with changes" if is_changed else "")


def _git(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def others_load() -> float:
    """Processes that wanted a core in the last minute, on the average."""
    return os.getloadavg()[0]
