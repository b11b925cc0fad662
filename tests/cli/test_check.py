"""The two passes of `./chairlift test`."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from cli import check

Ran = list[list[str]]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """The commands that were run, of which the first fails."""
    commands: Ran = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=int(len(commands) == 1))

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_those_alone_run_also_after_a_failure_which_is_told(ran: Ran) -> None:
    assert check.main(["test"]) == 1
    together, alone = ran
    assert together[-1] == "not slow and not alone"
    assert any(flag.startswith("--numprocesses=") for flag in together)
    assert alone[-1] == "alone and not slow"
    assert not any(flag.startswith("--numprocesses=") for flag in alone)


def test_arguments_go_to_pytest_as_they_are(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _path, command: given.append(command[1:]))
    check.main(["test", "-k", "thing"])
    assert given == [["-m", "pytest", "-k", "thing"]]
