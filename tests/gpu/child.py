"""`python -m tests.gpu.child`: a process that runs sections when it is told to.

It imports what takes long, and waits for a line that says how many seconds it has; so the next one
is ready when its turn comes.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu import sections, stand_ins

if TYPE_CHECKING:
    from tests.gpu.machine import Machine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sections", nargs="+")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--began", type=float, required=True)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    os.environ["TRITON_INTERPRET"] = "1" if options.dry else "0"  # read when triton is imported
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no more processes
    stand_ins.provide()
    import torch

    from tests.gpu.machine import choose

    torch.set_num_threads(1 if options.dry else 4)
    if line := sys.stdin.readline():  # else nobody waits for it any more
        until = time.monotonic() + float(line)
        make = partial(choose, options.model, dry=options.dry)
        run(make, options.sections, sections.load, options.folder, options.began, until)


def run(
    make: "Callable[[], Machine]",
    names: Sequence[str],
    load: Callable[[str], "sections.Section"],
    folder: Path,
    began: float,
    until: float,
) -> None:
    """One after the other; what makes one fail is in its report, and the next one runs."""
    from tests.gpu.report import Report

    for name in names:
        report = Report(name, folder, began, until)
        try:
            load(name)(make(), report)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            report.fail(error)
        else:
            report.end()


if __name__ == "__main__":
    main()
