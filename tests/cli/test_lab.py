"""The command: what it runs, what it writes, and what it says where it cannot."""

import os
import signal
import time
from pathlib import Path

import pytest

from cli.lab import iterations, main
from cli.lab.errors import LabError
from cli.lab.experiment import Experiment, Setting
from cli.lab.page import parse
from cli.lab.server import up


def test_two_seats_in_the_simulator(tmp_path: Path) -> None:
    """The first claim, exactly: 8 iterations in a static batch, 6 in a continuous one."""
    text = iterations.simulated(Setting(tmp_path))
    assert "| static | 8 | 8 |" in text
    assert "| continuous | 6 | 6 |" in text
    assert "continuous:\n1 Pddddd\n2 Pd\n3 ..Pd\n4 ....Pd" in text


def test_the_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "lab.md"
    assert main.main(["1", "--write", str(page)]) == 0
    parts = parse(page.read_text())
    assert set(parts) == {(1, "claim"), (1, "simulated")}
    assert "iteration-level scheduling" in parts[1, "claim"]
    assert f"`./chairlift lab 1 --write {page}`" in parts[1, "simulated"]
    assert parts[1, "simulated"] in capsys.readouterr().out


@pytest.mark.parametrize("number", ["7", "8"])
def test_without_traces_it_says_so(
    number: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("CHAIRLIFT_TRACES", raising=False)
    page = tmp_path / "lab.md"
    assert main.main([number, "--write", str(page)]) == 1
    assert "needs public traces" in capsys.readouterr().err
    assert not page.exists()
    assert main.main([number, "--traces", str(tmp_path)]) == 1
    assert f"{tmp_path} has no" in capsys.readouterr().err


def test_a_pool_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(LabError, match=r"did not get ready: .*no-such-model"),
        up(tmp_path, model="./no-such-model"),
    ):
        raise AssertionError("it started")


def test_one_that_fails_does_not_keep_the_others_from_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Setting) -> str:
        raise LabError("the simulator: broken")

    monkeypatch.setattr(iterations, "simulated", broken)
    monkeypatch.setitem(main.EXPERIMENTS, 2, Experiment(2, Fine))  # type: ignore[arg-type]
    assert main.main(["1", "2"]) == 1
    printed = capsys.readouterr()
    assert "1, simulated: the simulator: broken" in printed.err
    assert "## 2. fine" in printed.out


def test_a_signal_ends_it_as_ctrl_c_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it has started is ended on the way out."""
    ended = []

    def interrupted(_: Setting) -> str:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            ended.append("pool")
        return ""

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(iterations, "simulated", interrupted)
    assert main.main(["1", "2"]) == 130
    assert ended == ["pool"]
    assert signal.getsignal(signal.SIGTERM) is before


class Fine:
    """It works."""

    TITLE = "fine"

    @staticmethod
    def simulated(_: Setting) -> str:
        return "as it should be"


@pytest.mark.parametrize("arguments", [["9"], ["0"], ["one"], ["--sped"]])
def test_what_it_does_not_know(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_every_experiment_states_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    for experiment in main.EXPERIMENTS.values():
        assert "\n\nSource: " in experiment.claim
        assert callable(experiment.simulated)
    assert {e.number for e in main.EXPERIMENTS.values() if e.real} == {1, 2, 5}


def test_where_traces_lie_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    main.main(["1", "--traces", "/somewhere", "--quick"])
    main.main(["1", "--traces=/somewhere"])
    printed = capsys.readouterr().out
    assert "somewhere" not in printed
    assert "`./chairlift lab 1 --quick`" in printed


def test_without_numbers_all_are_meant() -> None:
    assert main._parser().parse_args([]).numbers == []
    assert main._parser().parse_args(["3", "1", "--real"]).numbers == [3, 1]
