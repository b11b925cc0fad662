"""What it costs that no token is lost: the append-only file, its syncs, and the journals.

    python -m tests.bench.promise [--rounds 6] [--streams 64] [--step-ms 10] [--json]

One running system, whose server and scheduler are switched between the arms while nothing runs, so
that all arms share processes, disk and minutes. In each round every arm has one turn, in another
order. Figures of an arm are compared with those of `none` in the same round.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from redis import Redis

from tests.bench.overhead import Measured, measure
from tests.bench.servers import ROOT, chairlift, disk_milliseconds, machine
from tests.bench.switch import SWITCH

PATCH = Path(__file__).parent / "no_journals"


@dataclass(frozen=True)
class Arm:
    name: str
    file: bool  # append-only
    sync: str  # `appendfsync`
    journals: bool


ARMS = (
    Arm("none", file=False, sync="no", journals=False),
    Arm("journals", file=False, sync="no", journals=True),
    Arm("and the file", file=True, sync="no", journals=True),
    Arm("and its syncs", file=True, sync="always", journals=True),  # as `up` has it
)
NONE, ALL = ARMS[0].name, ARMS[-1].name


def main() -> int:
    options = arguments()
    runs: list[dict[str, Measured]] = []
    rng = random.Random(options.rounds)
    with tempfile.TemporaryDirectory(prefix="promise-", dir=options.folder) as name:
        folder = Path(name)
        disk = disk_milliseconds(folder)
        switch = folder / "no-journals"
        environ = {"PYTHONPATH": f"{PATCH}:{ROOT}", SWITCH: str(switch)}
        flags = ["--backend", "simulated", "--step-ms", str(options.step_ms)]
        flags += ["--journal-seconds", "3", *options.flags.split()]
        with chairlift(folder, *flags, environ=environ) as server:
            url = (folder / "data" / "redis-url").read_text().strip()
            with Redis.from_url(url, decode_responses=True) as redis:
                measure(server, options, options.step_ms, disk, warmup=True)
                for _ in range(options.rounds):
                    runs.append({})
                    for arm in rng.sample(ARMS, len(ARMS)):
                        switched(arm, redis, switch)
                        runs[-1][arm.name] = measure(server, options, options.step_ms, disk)
                        check(arm, redis)
                    print(shares(runs[-1]), file=sys.stderr, flush=True)
    if options.json:
        told = [{name: asdict(run) for name, run in one.items()} for one in runs]
        print(json.dumps({"machine": machine(), "rounds": told}))
    else:
        print(table(runs))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--output-tokens", type=int, default=400)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--folder", help="where the data lies; else the temporary folder")
    parser.add_argument("--flags", default="", help="more for `up`, in one string")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def switched(arm: Arm, redis: "Redis", switch: Path) -> None:
    """The system as the arm has it, once nothing runs and the server has settled."""
    if arm.journals:
        switch.unlink(missing_ok=True)
    else:
        switch.touch()
    redis.config_set("appendfsync", arm.sync)
    redis.config_set("appendonly", "yes" if arm.file else "no")
    while _is_rewriting(redis) or journals(redis):
        time.sleep(0.1)
    time.sleep(0.5)


def journals(redis: "Redis") -> list[str]:
    return list(redis.scan_iter("chairlift:*:journal:*", count=1000))


def _is_rewriting(redis: "Redis") -> bool:
    told = redis.info("persistence")
    return bool(told["aof_rewrite_in_progress"] or told.get("aof_rewrite_scheduled"))


def check(arm: Arm, redis: "Redis") -> None:
    """The arm was what it says: the server tells, and the journals that were just written."""
    assert bool(redis.info("persistence")["aof_enabled"]) is arm.file
    longest = max(redis.xlen(key) for key in journals(redis))
    has_tokens = longest > 2  # beside head and end
    assert has_tokens is arm.journals, (arm, longest)


def ratios(runs: Sequence[dict[str, Measured]], arm: str) -> list[float]:
    """Steady rates against those without any of it, round by round."""
    return [run[arm].steady_tokens_per_second / run[NONE].steady_tokens_per_second for run in runs]


def shares(run: dict[str, Measured]) -> str:
    return ", ".join(f"{arm.name} {run[arm.name].share:.1%}" for arm in ARMS)


def table(runs: Sequence[dict[str, Measured]]) -> str:
    lines = [
        machine(),
        f"a write takes {runs[0][NONE].disk_ms[0]:.2f} ms, p90 {runs[0][NONE].disk_ms[1]:.2f};"
        f" others kept {_median(runs, NONE, 'others_cores'):.1f} cores busy",
        "",
        "| | tokens/s | of none, median (range) | ITL p50, ms | p99 | CPU ms for 1,000 tokens |",
        "|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        found = ratios(runs, arm.name)
        lines.append(
            f"| {arm.name} | {_median(runs, arm.name, 'steady_tokens_per_second'):,.0f} |"
            f" {statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f}) |"
            f" {_median(runs, arm.name, 'itl_p50_ms'):.1f} |"
            f" {_median(runs, arm.name, 'itl_p99_ms'):.1f} | {_cpu(runs, arm.name):.0f} |"
        )
    lines.append(f"\ncost of all: {1 - statistics.median(ratios(runs, ALL)):.1%} of the rate")
    return "\n".join(lines)


def _median(runs: Sequence[dict[str, Measured]], arm: str, what: str) -> float:
    return statistics.median(getattr(run[arm], what) for run in runs)


def _cpu(runs: Sequence[dict[str, Measured]], arm: str) -> float:
    """Of all processes but the client."""
    return statistics.median(
        sum(cost for role, cost in run[arm].cpu_ms_per_1000_tokens.items() if role != "client")
        for run in runs
    )


if __name__ == "__main__":
    sys.exit(main())
