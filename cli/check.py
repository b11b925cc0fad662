"""`./chairlift test` and `./chairlift lint`: the tools with which the repository is checked."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cli.install import ROOT

BIN = Path(sys.executable).parent
LINT = {
    "format": ["-m", "ruff", "format", "--check", "."],
    "lint": ["-m", "ruff", "check", "."],
    "import contracts": [str(BIN / "lint-imports"), "--no-cache"],
    "types": ["-m", "mypy"],
}


def main(arguments: Sequence[str]) -> int:
    """`arguments` begin with the command: `test` or `lint`."""
    os.chdir(ROOT)
    if arguments[0] == "test":
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments[1:]])
    return _lint()


def _lint() -> int:
    """Every check, also after one has failed."""
    failed = []
    for name, command in LINT.items():
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, *command], check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0
