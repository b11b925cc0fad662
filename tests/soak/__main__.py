"""`python -m tests.soak`: mixed load for a long time, and whether anything grows or stays behind.

Exit status 0: every answer was right, memory moved by no more than five per cent, and at rest
nothing was held that was not held before.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.soak import verdict
from tests.soak.run import Options, Outcome, run
from tests.soak.watch import Sample

MAX_SHOWN = 50  # of what is wrong


def main() -> int:
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=default.minutes, help="of load")
    parser.add_argument("--warm-up-minutes", type=float, default=default.warm_up_minutes)
    parser.add_argument("--rate", type=float, default=default.rate, help="clients a second")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--sample-seconds", type=float, default=default.sample_seconds)
    options = Options(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        outcome = uvloop.run(
            run(options, Path(folder), lambda sample: print(line(sample), flush=True))
        )
    wrong = [
        *outcome.wrong,
        *verdict.growth(outcome.samples),
        *verdict.left_behind(outcome.warm, outcome.rest),
    ]
    print(summary(outcome, options))
    for text in wrong[:MAX_SHOWN]:
        print(f"wrong: {text}")
    print(f"verdict: {len(wrong)} things are wrong" if wrong else "verdict: right")
    return 1 if wrong else 0


def line(sample: Sample) -> str:
    held = "  ".join(
        f"{name} {it.mib:.1f} MiB {it.descriptors} fd {it.threads} th"
        for name, it in sample.held.items()
    )
    return (
        f"{sample.seconds:6.0f} s  {held}  keys {sample.num_keys} ({sample.num_lasting} lasting)"
        f"  redis {sample.redis_mib:.1f} MiB  disk {sample.disk_mib:.0f} MiB"
    )


def summary(outcome: Outcome, options: Options) -> str:
    seconds = 60 * options.minutes
    server = outcome.samples[-1].cpu_seconds - outcome.warm.cpu_seconds
    lines = [
        "",
        f"at rest behind the warm-up: {line(outcome.warm)}",
        f"at rest behind the load:    {line(outcome.rest)}",
        f"{sum(outcome.outcomes.values())} clients, {outcome.num_tokens} tokens shown;"
        f" {server / seconds:.2f} cores for the system,"
        f" {outcome.client_cpu_seconds / seconds:.2f} for the clients",
        *(f"  {count:6} {what}" for what, count in sorted(outcome.outcomes.items())),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
