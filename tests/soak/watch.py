"""What the processes of a system hold: memory, descriptors, threads; and what Redis keeps."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from redis import Redis

from common.redis_bus.keys import FIXED

POOL = "chairlift:{default}:"
FIXED_KEYS = {POOL + name for name in FIXED}
ROLES = {"cli.main": "up", "gateway": "gateway", "scheduler": "scheduler", "gpu_worker": "worker"}


@dataclass(frozen=True)
class Held:
    """By one process."""

    mib: float  # RssAnon and VmSwap
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Sample:
    seconds: float  # since the load began
    held: Mapping[str, Held]  # by process
    num_keys: int  # in Redis, beside those that a pool always has
    num_lasting: int  # of them without a time to live
    redis_mib: float  # as the server counts
    disk_mib: float  # below the data folder
    cpu_seconds: float  # of all processes together, since they began


class Watch:
    """The processes that run when it begins: none of them may end."""

    def __init__(self, root: int, redis: "Redis", folder: Path) -> None:
        self.redis = redis
        self.folder = folder
        process = psutil.Process(root)
        self.processes: dict[str, psutil.Process] = {}
        for child in (process, *process.children(recursive=True)):
            role = role_of(child)
            number = sum(name.startswith(role) for name in self.processes)
            self.processes[f"{role}-{number}" if number else role] = child

    def sample(self, seconds: float) -> Sample:
        keys = [key for key in self.redis.scan_iter(count=1000) if key not in FIXED_KEYS]
        times = [process.cpu_times() for process in self.processes.values()]
        return Sample(
            seconds,
            {name: held_by(process) for name, process in self.processes.items()},
            len(keys),
            sum(self.redis.ttl(key) == -1 for key in keys),
            self.redis.info("memory")["used_memory"] / (1 << 20),
            sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
            / (1 << 20),
            sum(time.user + time.system for time in times),
        )


def role_of(process: psutil.Process) -> str:
    if "valkey" in process.name():
        return "valkey"
    words = process.cmdline()
    return next((role for module, role in ROLES.items() if module in words), process.name())


def held_by(process: psutil.Process) -> Held:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    kib = sum(int(fields[name].split()[0]) for name in ("RssAnon", "VmSwap"))
    return Held(kib / 1024, process.num_fds(), process.num_threads())
