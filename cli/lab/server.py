"""A whole Chairlift of one's own: `./chairlift up` with the settings that an experiment needs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.lab.errors import LabError
from cli.lab.simulator import ROOT, plain_environment

START_SECONDS = 180.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.2
READY = "ready: "
Entry = dict[str, Any]  # of the timeline
Status = dict[str, Any]


@dataclass(frozen=True)
class Pool:
    url: str
    data_dir: Path

    def queue(self, *arguments: str) -> str:
        """What `./chairlift queue` prints."""
        command = [sys.executable, "-m", "cli.main", "queue", "--data-dir", str(self.data_dir)]
        done = subprocess.run(
            [*command, *arguments],
            cwd=ROOT,
            env=plain_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise LabError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def timeline(self) -> list[Entry]:
        return [json.loads(line) for line in self.queue("timeline", "--json").splitlines()]

    def status(self) -> Status:
        found: Status = json.loads(self.queue("list", "--json"))
        return found

    def await_waiting(self, count: int, seconds: float = 20.0) -> None:
        """Until so many requests stand in line."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.status().get("summary", {}).get("num_waiting") == count:
                return
            time.sleep(POLL_SECONDS)
        raise LabError(f"{count} requests never stood in line together")

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
            return json.load(answer)


@contextmanager
def up(data_dir: Path, **settings: object) -> Iterator[Pool]:
    """Ready for requests, on a free port; ended, and its streams dropped, afterwards."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "cli.main", "up", "--port=0", f"--data-dir={data_dir}", *flags]
    data_dir.mkdir(parents=True, exist_ok=True)
    log, said = data_dir / "up.log", data_dir / "up.out"
    with log.open("wb") as errors, said.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=plain_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield Pool(_await_ready(process, said, log), data_dir)
    finally:
        _stop(process)
        shutil.rmtree(data_dir / "redis", ignore_errors=True)  # nothing of this run is left


def _await_ready(process: "subprocess.Popen[bytes]", said: Path, log: Path) -> str:
    """The url that it prints. It gives up by itself where it cannot start."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        printed = said.read_text()
        if READY in printed and printed.endswith("\n"):
            return printed.partition(READY)[2].strip()
        if process.poll() is not None:
            break
        time.sleep(POLL_SECONDS)
    lines = log.read_text(errors="replace").strip().splitlines()
    raise LabError(f"`up` did not get ready: {lines[-1] if lines else 'it says nothing'}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
