"""What a child process prints: into a bounded log file, and line by line to whoever wants it."""

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MAX_LOG_BYTES = 16 << 20  # of one file; the one before it is kept too
MAX_LINE_BYTES = 1 << 16
READ_BYTES = 1 << 16


class Output:
    """A pipe whose writing end, `descriptor`, is for a child to inherit.

    A pipe of our own and not asyncio's, whose `wait` for a process also waits for whatever else
    holds the pipe.
    """

    def __init__(self, path: Path, on_line: Callable[[str], None]) -> None:
        self._log = LogFile(path)
        self._on_line = on_line
        self._rest = b""
        self._reading, self.descriptor = os.pipe()
        os.set_blocking(self._reading, False)

    def __enter__(self) -> "Output":
        asyncio.get_running_loop().add_reader(self._reading, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        """What was written until now is still read."""
        os.close(self.descriptor)
        while self._read():
            pass
        self._line(self._rest)
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        self._log.close()

    def _read(self) -> bool:
        """Whether there was anything."""
        try:
            data = os.read(self._reading, READ_BYTES)
        except BlockingIOError:
            return False
        self._log.write(data)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-MAX_LINE_BYTES:]
        for line in lines:
            self._line(line)
        return bool(data)

    def _line(self, line: bytes) -> None:
        if text := line.decode(errors="replace").strip():
            self._on_line(text)


class LogFile:
    """Appends to a file that is renamed to `.1` when it has grown large.

    A full disk costs log lines, not the service.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._file = path.open("ab", buffering=0)

    def close(self) -> None:
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
