"""Compiles the kernels for this machine, once, into a cache folder that processes may share."""

import fcntl
import hashlib
import importlib.util
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

SOURCES = Path(__file__).parent
TARGET = "-mcpu=native" if platform.machine() in {"aarch64", "arm64"} else "-march=native"
FLAGS = (
    *("-std=gnu11", "-O3", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-sanitize=undefined", "-Wno-psabi"),
)
COMPILE_SECONDS = 300

Command = tuple[str, ...]


class NativeUnavailableError(Exception):
    """The kernels cannot be compiled or loaded here; the text says why."""


def build(cache_dir: Path, compiler: str = "") -> Path:
    """The shared library for this machine, compiled if it is not in the cache yet.

    `compiler` is a command to try before those on the PATH; -march= or -mcpu= in it names another
    machine. Processes that build at one time wait for the first. Raises NativeUnavailableError.
    """
    reasons = []
    for command in compilers(cache_dir, compiler):
        try:
            return _build_with(command, cache_dir)
        except (OSError, subprocess.SubprocessError, NativeUnavailableError) as error:
            reasons.append(f"{' '.join(command)}: {error}")
    raise NativeUnavailableError("; ".join(reasons) or "no C compiler found")


def compilers(cache_dir: Path, first: str = "") -> Iterator[Command]:
    """Those to try, in order: the one asked for, the system's, then the wheel that is one."""
    if first:
        yield tuple(shlex.split(first))
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            yield (path,)
    if importlib.util.find_spec("ziglang"):
        cache = f"ZIG_GLOBAL_CACHE_DIR={cache_dir / 'zig'}"  # the home may be read-only
        yield ("env", cache, sys.executable, "-m", "ziglang", "cc")


def flags_of(command: Command) -> Command:
    """What a compiler is told beside the sources; for this machine, if it names no other target."""
    names_target = any(word.startswith(("-march=", "-mcpu=")) for word in command)
    return FLAGS if names_target else (*FLAGS, TARGET)


def _build_with(command: Command, cache_dir: Path) -> Path:
    cache_dir.mkdir(parents=True, exist_ok=True)
    library = cache_dir / f"kernels-{_key(command)}.so"
    with (cache_dir / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(command, library)
    return library


def _compile(command: Command, library: Path) -> None:
    """Writes beside the library and renames: whoever sees the file sees all of it."""
    partial = library.with_suffix(".partial")
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    run = _run([*command, *flags_of(command), "-o", str(partial), *sources])
    if run.returncode:
        lines = run.stderr.strip().splitlines() or ["no message"]
        errors = [line for line in lines if "error" in line]
        raise NativeUnavailableError((errors or lines)[0])
    partial.rename(library)


def _key(command: Command) -> str:
    """Changes with whatever could change the machine code."""
    version = _run([*command, "--version"])
    if version.returncode:
        raise NativeUnavailableError("does not run")
    options = [word for word in command if word.startswith("-")]
    parts = [" ".join([*options, *flags_of(command)]), version.stdout, _cpu()]
    parts += [path.read_text() for path in sorted(SOURCES.glob("*.[ch]"))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _cpu() -> str:
    """What the processor is and can do: a data folder may move to another machine."""
    names = ("model name", "flags", "CPU implementer", "CPU part", "Features")
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n", maxsplit=1)[0].splitlines() if info.exists() else []
    found = [line for line in lines if line.split("\t")[0].strip() in names]
    return "\n".join([platform.machine(), platform.processor(), *found])


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
    )
