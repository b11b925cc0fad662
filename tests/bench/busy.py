"""How many threads of all of Chairlift's processes are busy at a time, and of which process.

    python -m tests.bench.busy [--streams 16] [--seconds 20] [--flags '--quantization int8']

The embedded model under load. At random moments the state of every thread is read from /proc:
busy is one that runs or waits for a core. The client, which is this program, is not counted.
"""

import argparse
import asyncio
import os
import random
import shlex
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from cli.bench import run as put_load
from cli.bench.options import Options
from tests.bench.servers import Server, chairlift, machine, role_of

MEAN_PAUSE_SECONDS = 0.02

Moment = Counter[str]  # busy threads by role


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--flags", default="", help="more for `up`, in one string")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="busy-") as folder,
        chairlift(Path(folder), *shlex.split(options.flags)) as server,
    ):
        put(server, options.streams, seconds=3.0)
        with Watch(server) as watch:
            put(server, options.streams, options.seconds)
    print(machine())
    report(watch.moments, len(os.sched_getaffinity(0)))
    return 0


def put(server: Server, streams: int, seconds: float) -> None:
    options = Options(
        url=server.url,
        concurrency=streams,
        duration=seconds,
        prompt_tokens=128,
        output_tokens=128,
        seed=time.monotonic_ns(),
    )
    found = asyncio.run(put_load(options))
    if found.num_failed:
        raise SystemExit(f"failed: {found.errors}")


class Watch:
    """Reads the states in a thread of its own, until it is left."""

    def __init__(self, server: Server) -> None:
        self.moments: list[Moment] = []
        self._roles = {process.pid: role_of(process) for process in server.processes()}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(random.expovariate(1 / MEAN_PAUSE_SECONDS)):
            self.moments.append(self._moment())

    def _moment(self) -> Moment:
        busy: Moment = Counter()
        for pid, role in self._roles.items():
            busy[role] += sum(map(is_busy, Path(f"/proc/{pid}/task").iterdir()))
        return busy


def is_busy(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return False


def report(moments: list[Moment], cores: int) -> None:
    totals = Counter(sum(moment.values()) for moment in moments)
    print(f"{len(moments)} moments; busy threads of all processes:")
    for count, times in sorted(totals.items()):
        print(f"  {count:2} {times / len(moments):6.1%}")
    print("by process: mean, most, share of moments with more than there are cores")
    for role in sorted({role for moment in moments for role in moment}):
        counts = [moment[role] for moment in moments]
        more = sum(count > cores for count in counts) / len(counts)
        print(f"  {role:12} {sum(counts) / len(counts):5.2f} {max(counts):3} {more:6.1%}")


if __name__ == "__main__":
    sys.exit(main())
