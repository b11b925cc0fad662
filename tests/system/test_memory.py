"""Nothing grows with the number of requests that have been answered."""

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from cli.bench import run
from cli.bench.options import Options
from tests.system.started import Started, start

NUM_FIRST, NUM_MORE = 2000, 8000
MAX_GROWTH_MIB = 4.0
JOURNAL_SECONDS = 2
PROCESSES = ("cli.main", "gateway", "scheduler", "gpu_worker", "valkey-server")
FLAGS = (
    *("--backend=simulated", "--step-ms=0", "--num-blocks=512"),
    *(f"--journal-seconds={JOURNAL_SECONDS}", "--timeline-entries=1000"),  # kept on purpose
)


def anonymous_mib(system: Started) -> dict[str, float]:
    """RssAnon and VmSwap of each process."""
    up = psutil.Process(system.process.pid)
    found = {}
    for process in (up, *up.children(recursive=True)):
        words = " ".join(process.cmdline()[:3])
        [name] = [name for name in PROCESSES if name in words]
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        found[name] = sum(int(fields[f].split()[0]) for f in ("RssAnon", "VmSwap")) / 1024
    return found


def answer(system: Started, num_requests: int) -> None:
    options = Options(
        url=system.url,
        requests=num_requests,
        concurrency=32,
        prompt_tokens=16,
        output_tokens=8,
        vocabulary=(1000, 9000),
    )
    report = asyncio.run(run(options))
    assert report.num_failed == 0
    time.sleep(2 * JOURNAL_SECONDS + 2)  # until what is kept for a while is gone


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_is_flat_over_ten_thousand_requests(tmp_path: Path) -> None:
    system = start(tmp_path, *FLAGS)
    answer(system, NUM_FIRST)
    before = anonymous_mib(system)
    assert sorted(before) == sorted(PROCESSES)
    answer(system, NUM_MORE)
    growth = {name: mib - before[name] for name, mib in anonymous_mib(system).items()}
    print({name: f"{before[name]:.1f} MiB, {mib:+.2f}" for name, mib in growth.items()})
    assert max(growth.values()) < MAX_GROWTH_MIB, growth
    assert system.stop() == 0
