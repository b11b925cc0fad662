"""One child process of the supervisor: started, its output kept, started again when it dies."""

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

STEADY_SECONDS = 30.0  # who lived so long has not failed at once
MAX_BACKOFF_SECONDS = 10.0
MAX_LOG_BYTES = 16 << 20  # of one file; the one before it is kept too
MAX_LINE_BYTES = 1 << 16
PR_SET_PDEATHSIG = 1  # of prctl(2)

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Stage(IntEnum):
    """The order in which children end."""

    GATEWAY = 0
    WORKER = 1  # while a scheduler can still move its requests away
    SCHEDULER = 2
    SERVER = 3


@dataclass(frozen=True)
class Spec:
    name: str
    stage: Stage
    command: tuple[str, ...]
    log: Path
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    grace_seconds: float = 5.0  # from SIGTERM to SIGKILL
    descriptors: tuple[int, ...] = ()  # inherited


@dataclass(frozen=True)
class Exit:
    """How one life of a child ended."""

    name: str
    status: int  # negative: the signal that ended it
    last_line: str
    failures: int  # lives in a row that ended soon, this one included

    @property
    def reason(self) -> str:
        how = f"exit status {self.status}"
        if self.status < 0:
            how = signal.Signals(-self.status).name
        return f"{self.name} ended ({how})" + (f": {self.last_line}" if self.last_line else "")


class Child:
    """Runs a command again and again until told to stop."""

    def __init__(
        self, spec: Spec, on_line: Callable[[Spec, str], None], on_exit: Callable[[Exit], None]
    ) -> None:
        self.spec = spec
        self.process: asyncio.subprocess.Process | None = None
        self.ended = asyncio.Event()  # for good
        self._on_line = on_line
        self._on_exit = on_exit
        self._stopping = asyncio.Event()
        self._last_lines: deque[str] = deque(maxlen=5)

    async def run(self) -> None:
        failures = 0
        clock = asyncio.get_running_loop().time
        try:
            while not self._stopping.is_set():
                started = clock()
                status = await self._live()
                if self._stopping.is_set():
                    break
                failures = 1 if clock() - started > STEADY_SECONDS else failures + 1
                self._on_exit(Exit(self.spec.name, status, self._last_line(), failures))
                await self._pause(backoff(failures))
        finally:
            self.ended.set()

    def stop(self, *, kill: bool = False) -> None:
        """Asks the process to end, or ends it; it is not started again."""
        self._stopping.set()
        if self.process and self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)

    async def _live(self) -> int:
        self._last_lines.clear()
        parent = os.getpid()
        self.process = process = await asyncio.create_subprocess_exec(
            *self.spec.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self.spec.environ,
            pass_fds=self.spec.descriptors,
            start_new_session=True,  # a Ctrl-C on the terminal is the supervisor's to hand on
            preexec_fn=lambda: _die_with(parent),
        )
        if self._stopping.is_set():  # told while the process was being made
            process.terminate()
        assert process.stdout
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(self._read(process.stdout), name=f"{self.spec.name}.log")
            status = await process.wait()
            _end_group(process.pid)
            await asyncio.wait([reader], timeout=1.0)
            reader.cancel()
        return status

    async def _read(self, stream: asyncio.StreamReader) -> None:
        """Output into the log file, line by line."""
        with LogFile(self.spec.log) as log:
            rest = b""
            while data := await stream.read(MAX_LINE_BYTES):
                log.write(data)
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[-MAX_LINE_BYTES:]
                for line in lines:
                    self._line(line)
            self._line(rest)

    def _line(self, line: bytes) -> None:
        if text := line.decode(errors="replace").strip():
            self._last_lines.append(text)
            self._on_line(self.spec, text)

    def _last_line(self) -> str:
        return readable(self._last_lines[-1])[:500] if self._last_lines else ""

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


class LogFile:
    """Appends to a file that is renamed to `.1` when it has grown large.

    A full disk costs log lines, not the service.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> "LogFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        with suppress(OSError):
            self._write(data)

    def _write(self, data: bytes) -> None:
        if self._file.tell() + len(data) > self.max_bytes:
            self._file.close()
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            self._file = self.path.open("ab", buffering=0)
        self._file.write(data)


def backoff(failures: int) -> float:
    """Seconds until the next start: none after one failure, then doubling."""
    return 0.0 if failures <= 1 else min(MAX_BACKOFF_SECONDS, 0.5 * 2 ** (failures - 2))


def readable(line: str) -> str:
    """A log line for a person: of JSON the event and what came with it."""
    event, rest = parse_event(line)
    if not event:
        return line
    shown = [f"{key}={value}" for key, value in rest.items() if key not in ("level", "timestamp")]
    return " ".join([event, *shown])


def parse_event(line: str) -> tuple[str, dict[str, object]]:
    """The event of a JSON log line and its other fields; ("", {}) if it is none."""
    try:
        fields = json.loads(line)
        return str(fields.pop("event")), fields
    except (ValueError, AttributeError, KeyError, TypeError):
        return "", {}


def _die_with(parent: int) -> None:
    """Between fork and exec: no child outlives its supervisor, not even one that was killed."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _end_group(pid: int) -> None:
    """Whatever the process itself started ends with it."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
