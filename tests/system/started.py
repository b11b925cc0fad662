"""A started system, as a user starts it: `./chairlift up`."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
START_SECONDS = 90.0


@dataclass
class Started:
    """`./chairlift up`, ready."""

    process: subprocess.Popen[str]
    url: str
    data_dir: Path
    ready_seconds: float

    def stop(self) -> int:
        with self.process:  # closes its pipe
            self.process.send_signal(signal.SIGTERM)
            return self.process.wait(60)

    def redis_url(self) -> str:
        return (self.data_dir / "redis-url").read_text().strip()


def start(data_dir: Path, *flags: str) -> Started:
    began = time.monotonic()
    command = [sys.executable, "-m", "cli.main", "up", "--port", "0", "--data-dir", str(data_dir)]
    with (data_dir / "up.log").open("w") as log:
        process = subprocess.Popen(
            [*command, *flags],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready: "):
            return Started(process, line.split()[1], data_dir, time.monotonic() - began)
        assert time.monotonic() - began < START_SECONDS
    raise AssertionError((data_dir / "up.log").read_text())
