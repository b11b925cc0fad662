"""Replies of the server (RESP2) as they come in, in pieces of any size; pure.

Written out in one place: a reply to XREAD is a dozen values, and it comes several times a step.
"""

from collections.abc import Callable
from typing import Any

END = b"\r\n"
STATUS, ERROR, INTEGER, BULK, ARRAY = b"+-:$*"


class ReplyError(Exception):
    """This is no RESP2."""


class ReplyReader:
    def __init__(self, error: Callable[[str], Exception]) -> None:
        """`error`: makes what stands for an error in the replies, of the server's words."""
        self._error = error
        self._rest = b""  # of what came, too little for a value
        self._open: list[tuple[list[Any], int]] = []  # arrays, outer ones first; their lengths

    def feed(self, data: bytes) -> list[Any]:
        """The replies that are complete now. Raises ReplyError."""
        data = self._rest + data if self._rest else data
        replies: list[Any] = []
        at = 0
        while (end := data.find(END, at)) >= 0:
            kind = data[at]
            if kind == BULK:
                size = int(data[at + 1 : end])
                start, at_next = end + 2, end + 4 + size
                if size < 0:
                    value, at_next = None, start
                elif len(data) < at_next:
                    break
                else:
                    value = data[start : at_next - 2]
            elif kind == ARRAY and (length := int(data[at + 1 : end])) > 0:
                self._open.append(([], length))
                at = end + 2
                continue
            else:
                value, at_next = self._line(kind, data[at + 1 : end]), end + 2
            at = at_next
            self._put(value, replies)
        self._rest = data[at:]
        return replies

    def _line(self, kind: int, line: bytes) -> Any:
        if kind == STATUS:
            return line
        if kind == INTEGER:
            return int(line)
        if kind == ERROR:
            return self._error(line.decode(errors="replace"))
        if kind == ARRAY:
            return [] if line == b"0" else None
        raise ReplyError(f"no reply begins with {bytes([kind])!r}")

    def _put(self, value: Any, replies: list[Any]) -> None:
        """Into the innermost array that is open; one that is full goes into the one around it."""
        while self._open:
            values, length = self._open[-1]
            values.append(value)
            if len(values) < length:
                return
            self._open.pop()
            value = values
        replies.append(value)
