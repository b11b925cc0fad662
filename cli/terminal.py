"""What `./chairlift up` says on stderr: lines, and on a terminal progress that moves."""

import sys
import time
from contextlib import suppress

from cli.options import PROGRAM

CLEAR_LINE = "\r\033[K"


class Terminal:
    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._open = ""  # progress that stands on the screen without an end of line
        self._last_progress = ""
        self._said_at = time.monotonic()

    @property
    def quiet_seconds(self) -> float:
        """Since anything was said."""
        return time.monotonic() - self._said_at

    def say(self, text: str) -> None:
        self._write(f"{CLEAR_LINE if self._open else ''}{PROGRAM}: {text}\n")
        self._open = ""

    def progress(self, what: str, percent: object) -> None:
        """Each thing once, and on a terminal how far it is."""
        if self._is_terminal:
            self._open = f"{PROGRAM}: {what}, {percent} %"
            self._write(f"{CLEAR_LINE}{self._open}")
        elif what != self._last_progress:
            self._write(f"{PROGRAM}: {what}\n")
        self._last_progress = what

    def close_line(self) -> None:
        """Before others print."""
        if self._open:
            self._write(CLEAR_LINE)
            self._open = ""

    def _write(self, text: str) -> None:
        self._said_at = time.monotonic()
        with suppress(OSError):  # the terminal may be gone
            sys.stderr.write(text)
            sys.stderr.flush()
