"""One child process of the supervisor: started, its output kept, started again when it dies."""

import asyncio
import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from cli.output import Output, readable

STEADY_SECONDS = 30.0  # who lived so long has not failed at once
MAX_BACKOFF_SECONDS = 10.0
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
        told = self.last_line and -self.status not in (signal.SIGKILL, signal.SIGTERM)
        return f"{self.name} ended ({how})" + (f": {self.last_line}" if told else "")


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
            _signal(self.process.pid, signal.SIGKILL if kill else signal.SIGTERM)

    async def _live(self) -> int:
        """One life of the process; its exit status."""
        self._last_lines.clear()
        parent = os.getpid()
        with Output(self.spec.log, self._line) as output:
            self.process = process = await asyncio.create_subprocess_exec(
                *self.spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output.descriptor,
                stderr=asyncio.subprocess.STDOUT,
                env=self.spec.environ,
                pass_fds=self.spec.descriptors,
                start_new_session=True,  # a Ctrl-C on the terminal is the supervisor's to hand on
                preexec_fn=lambda: die_with(parent),
            )
            if self._stopping.is_set():  # told while the process was being made
                _signal(process.pid, signal.SIGTERM)
            status = await process.wait()
            _end_group(process.pid)
        return status

    def _line(self, text: str) -> None:
        self._last_lines.append(text)
        self._on_line(self.spec, text)

    def _last_line(self) -> str:
        return readable(self._last_lines[-1])[:500] if self._last_lines else ""

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


def backoff(failures: int) -> float:
    """Seconds until the next start: none after one failure, then doubling."""
    return 0.0 if failures <= 1 else min(MAX_BACKOFF_SECONDS, 0.5 * 2 ** (failures - 2))


def die_with(parent: int) -> None:
    """Between fork and exec: no child outlives its supervisor, not even one that was killed."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _signal(pid: int, number: signal.Signals) -> None:
    """Not by the process object, whose `send_signal` may take its exit status from asyncio."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _end_group(pid: int) -> None:
    """Whatever the process itself started ends with it."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
