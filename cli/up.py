"""`./chairlift up`: a whole Chairlift on this machine, ended by Ctrl-C or SIGTERM."""

import asyncio
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cli import embedded, listening, redis_probe
from cli.child import Spec
from cli.embedded import Embedded
from cli.options import PROGRAM, Options, read_options
from cli.processes import Site, metrics_dir
from cli.redis_probe import ProbeError
from cli.supervisor import SIGNALS, Supervisor
from cli.terminal import Terminal
from common.config import environment, flag
from common.model_files import HUB_ID, ModelFilesError, locate


class UpError(Exception):
    """It cannot start as asked; one line that says why."""


def main(arguments: Sequence[str]) -> int:
    options = read_options(arguments, environment())
    try:
        return _run(options)
    except (UpError, ModelFilesError, ProbeError, listening.ListenError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return 2
    except KeyboardInterrupt:  # before there was anything to drain
        return 130


def _run(options: Options) -> int:
    data_dir = Path(options.gateway.data_dir).expanduser().absolute()
    url = options.up.redis_url
    terminal = Terminal()
    if url:
        redis_probe.check(redis_probe.parse_url(url))
    with (
        _locked(data_dir),
        listening.listen(options.gateway.host, options.gateway.port, options.up.gateways) as door,
    ):
        if HUB_ID.fullmatch(options.gateway.model):
            terminal.say(f"looking for {options.gateway.model} on the hub")
        locate(options.gateway.model, data_dir)
        shutil.rmtree(metrics_dir(data_dir), ignore_errors=True)
        with _embedded(options, data_dir) as server:
            site = Site(options, data_dir, server.url if server else url, door.port)
            specs = [site.server(server.command)] if server else []
            specs += site.services(door.descriptors)
            status = asyncio.run(_supervise(specs, terminal, door, server))
            for number in SIGNALS:  # all have ended: only sockets and locks are left to remove
                signal.signal(number, signal.SIG_IGN)
            return status


async def _supervise(
    specs: Sequence[Spec], terminal: Terminal, door: listening.Door, server: Embedded | None
) -> int:
    async def server_ready() -> str:
        return await asyncio.to_thread(_ping, server) if server else ""

    def on_ready() -> None:
        terminal.close_line()
        print(f"ready: {door.url}", flush=True)

    supervisor = Supervisor(
        specs,
        terminal,
        server_ready=server_ready,
        ready=door.trouble,
        on_ready=on_ready,
        on_drain=door.close,
    )
    return await supervisor.run()


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    """The data directory, made if need be, for this process alone."""
    try:
        (data_dir / "logs").mkdir(parents=True, exist_ok=True)
        lock: IO[str] = (data_dir / "lock").open("a+")
    except OSError as error:
        raise UpError(f"{flag('data_dir')}: cannot write {data_dir} ({error.strerror})") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise UpError(
                f"{data_dir} is in use by another `up`, process {lock.read().strip() or '?'}"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


@contextmanager
def _embedded(options: Options, data_dir: Path) -> Iterator[Embedded | None]:
    if options.up.redis_url:
        yield None
        return
    try:
        server = embedded.make(
            data_dir, options.up.redis_bytes, environment().get("XDG_RUNTIME_DIR")
        )
    except OSError as error:
        raise UpError(str(error)) from None
    try:
        server.prepare()
        yield server
    finally:
        server.remove()


def _ping(server: Embedded) -> str:
    try:
        with redis_probe.connect(server.address) as connection:
            connection.command("PING")
    except ProbeError as error:
        return str(error)
    return ""
