"""`./chairlift test` and `./chairlift lint`: the tools with which the repository is checked."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli.install import ROOT
from common.config import environment

BIN = Path(sys.executable).parent
LINT = {
    "format": ["-m", "ruff", "format", "--check", "."],
    "lint": ["-m", "ruff", "check", "."],
    "import contracts": [str(BIN / "lint-imports"), "--no-cache"],
    "types": ["-m", "mypy"],
}


# Tests that time something, or keep all cores busy themselves, come behind the others, one by one.
TOGETHER = ("--dist=loadfile", "-m", "not slow and not alone")
ALONE = ("-m", "alone and not slow")
MOST_PROCESSES = 8  # each holds what torch takes


def main(arguments: Sequence[str]) -> int:
    """`arguments` begin with the command: `test` or `lint`."""
    os.chdir(ROOT)
    if arguments[0] == "lint":
        return _lint()
    if arguments[1:]:
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments[1:]])
    return _test()


def _test() -> int:
    """All but the slow tests: first on all cores; then, also if one failed, those alone."""
    processes = min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
    together = _pytest([f"--numprocesses={processes}", *TOGETHER], {"OMP_NUM_THREADS": "1"})
    alone = _pytest(ALONE, {})
    return together or alone


def _pytest(flags: Sequence[str], more: Mapping[str, str]) -> int:
    command = [sys.executable, "-m", "pytest", *flags]
    return subprocess.run(command, env={**more, **environment()}, check=False).returncode


def _lint() -> int:
    """Every check, also after one has failed."""
    failed = []
    for name, command in LINT.items():
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, *command], check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0
