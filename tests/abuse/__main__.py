"""`python -m tests.abuse`: a gateway under attack over bare sockets; whether it stays well.

Exit status 0: no answer was a server's fault, nothing hung, health was answered in time, and
nothing was left behind. About ten minutes; `--scale 0.05` is a short form.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.abuse.attacks import ATTACKS
from tests.abuse.run import Outcome, line, run
from tests.soak.__main__ import line as held

ADDED_MS = 50.0  # that 99 of 100 probes of health may take beyond what they take when it is calm
MAX_SHOWN = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.abuse", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of connections")
    parser.add_argument("attacks", nargs="*", help=f"some of {', '.join(ATTACKS)}; none: all")
    options = parser.parse_args()
    names = options.attacks or list(ATTACKS)
    with tempfile.TemporaryDirectory(prefix="abuse-") as folder:
        told = run(Path(folder), options.scale, names, lambda text: print(text, flush=True))
        outcome = uvloop.run(told)
    wrong = [*outcome.wrong, *too_late(outcome)]
    print(f"calm: {line(outcome.calm)}")
    print(f"before: {held(outcome.before)}\nafter:  {held(outcome.after)}")
    for text in wrong[:MAX_SHOWN]:
        print(f"wrong: {text}")
    print(f"verdict: {len(wrong)} things are wrong" if wrong else "verdict: right")
    return 1 if wrong else 0


def too_late(outcome: Outcome) -> list[str]:
    bound = outcome.calm.percentile(99) + ADDED_MS
    return [
        f"{name}: {line(answered)}, where {bound:.0f} ms are allowed"
        for name, answered in outcome.health.items()
        if answered.percentile(99) > bound
    ]


if __name__ == "__main__":
    sys.exit(main())
