"""Whether the GPU backend is right and fast on the machine that this runs on: one GPU, no network.

    python -m tests.gpu.check [--json FILE] [--seconds 235] [--model PATH] [--only NAME ...] [--dry]

Compares all kernels with their references, a model's tokens with the CPU's, and times with what the
bandwidth and arithmetic of this GPU allow; docs/gpu.md says what is printed. The exit code is 1 if
a section failed. `--dry` runs the same lines on a CPU, over tiny shapes.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.processes import run_stages
from tests.gpu.sections import MODULES, SECONDS, choose
from tests.gpu.summary import Summary


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.gpu.check")
    parser.add_argument("--json", type=Path, help="a file for results, written as they come")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all of it")
    parser.add_argument("--only", nargs="+", default=[], choices=MODULES, help="sections")
    parser.add_argument("--model", default="embedded", help="whose tokens are compared, too")
    parser.add_argument("--dry", action="store_true", help="on a CPU, over tiny shapes")
    options = parser.parse_args(argv)
    stages = choose(options.only, dry=options.dry)
    names = [name for stage in stages for name in stage.sections]
    with tempfile.TemporaryDirectory() as folder:
        summary = Summary(Path(folder), names, options.json)
        command = ["-m", "tests.gpu.child", "--folder", folder, "--model", options.model]
        command += ["--began", str(time.monotonic()), *(["--dry"] if options.dry else [])]
        run_stages(stages, command, summary, options.seconds)
        print(f"\n{summary.text()}")
        return int(bool(summary.failed()))


if __name__ == "__main__":
    sys.exit(main())
