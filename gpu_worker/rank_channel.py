"""What rank 0 of a worker and one follower say to each other: lines over a pair of sockets.

    rank 0      follower
    start ->                what to load (JSON)
            <- ready
    life ->                 a new name: forget all rows, read the plans of that name
            <- ready
    launch ->               begin that plan, and none that was not named
            <- launch       the follower has the plan
    finish ->               read what it sampled

Plans themselves come to every rank from Redis. Each end notices at once when the other process is
gone, however it ended, since the system closes its sockets.
"""

import contextlib
import select
import socket
import threading
from collections.abc import Callable


class Channel:
    """One end. Each direction is written by one thread at a time, and read by one."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lines = end.makefile("r", encoding="utf-8", newline="\n")

    def send(self, kind: str, value: str = "") -> None:
        """Where the other end is gone, nothing: `watch` tells of that."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(f"{kind} {value}\n".encode())

    def receive(self) -> tuple[str, str]:
        """The next line; ("", "") when the other end is gone. TimeoutError after `limit`."""
        kind, _, value = self._lines.readline().rstrip("\n").partition(" ")
        return kind, value

    def limit(self, seconds: float | None) -> None:
        """How long `receive` waits from now on."""
        self._socket.settimeout(seconds)

    def watch(self, on_gone: Callable[[], None]) -> None:
        """Call `on_gone`, on a thread of its own, when the other end is closed."""
        threading.Thread(target=self._wait, args=(on_gone,), name="watch", daemon=True).start()

    def _wait(self, on_gone: Callable[[], None]) -> None:
        poll = select.poll()
        poll.register(self._socket, 0)  # a hang-up is always told
        poll.poll()
        on_gone()

    def hang_up(self) -> None:
        """The other end hears of it even while a thread of this process watches."""
        with contextlib.suppress(OSError):  # the other end was first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._socket.close()
