"""The simulator as a command: `python -m scheduler.simulation`, whose figures come back as JSON."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.lab.errors import LabError
from common.config import PREFIX, environment

ROOT = Path(__file__).parents[2]
Settings = Mapping[str, object]  # by name, as `max_running`
Figures = dict[str, Any]


def plain_environment() -> dict[str, str]:
    """Without our own variables: an experiment has the settings that it names, and no others."""
    found = {name: text for name, text in environment().items() if not name.startswith(PREFIX)}
    return found | {"PYTHONPATH": str(ROOT)}


def simulate(settings: Settings, cases: Mapping[str, Settings] | None = None) -> dict[str, Figures]:
    """The figures of each case, `each_request` among them. Without cases there is one, `all`."""
    printed = _run(settings, cases or {"all": {}}, "--json", "--by-request")
    return {case["case"]: case for case in json.loads(printed)["cases"]}


def simulate_one(**settings: object) -> Figures:
    return simulate(settings)["all"]


def draw(settings: Settings, cases: Mapping[str, Settings]) -> dict[str, str]:
    """The iterations of the only worker of each case: a row a request, a column an iteration."""
    printed = _run(settings, cases, "--timeline")
    found = {}
    for part in printed.split("\n\n"):
        head, _, rows = part.partition("\n")
        name, colon, rest = head.partition(":")
        if colon and ", iterations " in rest:
            found[name] = rows.rstrip()
        elif len(cases) == 1 and ", iterations " in head:  # a single case is not named
            found[next(iter(cases))] = rows.rstrip()
    return found


def _run(settings: Settings, cases: Mapping[str, Settings], *more: str) -> str:
    command = [sys.executable, "-m", "scheduler.simulation", *more]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    for name, changes in cases.items():
        text = ",".join(f"{key}={value}" for key, value in changes.items())
        command += ["--case", f"{name}:{text}"]
    done = subprocess.run(
        command, cwd=ROOT, env=plain_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LabError(f"the simulator: {done.stderr.strip() or done.returncode}")
    return done.stdout
