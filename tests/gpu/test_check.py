"""The check of a GPU, dry: all sections over tiny shapes; and what becomes of those that fail."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.gpu import child, stand_ins
from tests.gpu.clock import Clock
from tests.gpu.machine import Cpu, Machine
from tests.gpu.machine import choose as choose_machine
from tests.gpu.processes import run_stages
from tests.gpu.report import Report
from tests.gpu.sections import BESIDE, DRY_STAGES, MODULES, STAGES, Stage, choose
from tests.gpu.spans import idle_share
from tests.gpu.summary import Summary
from tests.gpu_worker.tiny import make_reference


@pytest.fixture
def report(tmp_path: Path) -> Report:
    now = time.monotonic()
    return Report("some", tmp_path, now, now + 60)


def found(folder: Path, section: str = "some") -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / f"{section}.json").read_text())
    return value


# --- All of it --------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_a_dry_run_goes_through_all_sections(tmp_path: Path) -> None:
    make_reference("llama").save_pretrained(tmp_path / "model")
    results = tmp_path / "results.json"
    command = [sys.executable, "-m", "tests.gpu.check", "--dry", "--json", str(results)]
    command += ["--seconds", "270", "--model", str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    whole = json.loads(results.read_text())
    assert list(whole["sections"]) == list(MODULES)
    assert {name for name, s in whole["sections"].items() if s["status"] != "passed"} == set()
    assert whole["failed"] == []
    for name in BESIDE:
        cases = [row for row in whole["sections"][name]["rows"] if "case" in row]
        assert len(cases) >= 3, name
        assert all(row["ok"] for row in cases)
    assert not any("no time" in note for s in whole["sections"].values() for note in s["notes"])
    assert_measured(whole)
    ending = done.stdout.partition("\nsections\n")[2]
    for name in MODULES:
        assert f"  {name} " in ending
    assert "idle between steps: arriving" in ending


def assert_measured(whole: dict[str, Any]) -> None:
    kernels = [row for row in whole["sections"]["times"]["rows"] if "kernel" in row]
    assert len(kernels) > 25
    assert all(row["us"] >= 0 for row in kernels)
    assert {row["torch"] for row in kernels} == {"", "sdpa", "linear", "torch.compile"}
    assert all(isinstance(row["torch_us"], float) for row in kernels if row["torch"])
    steps = [row["step"] for row in whole["sections"]["decode"]["rows"] if "step" in row]
    assert steps == ["graph", "eager", "graph, wide tables"] * 2 + ["prompt"]
    wanted = [target["target"] for target in whole["targets"]]
    for beginning in ("attention, decode", "attention, prompt", "decode step of 8B", "idle"):
        assert any(name.startswith(beginning) for name in wanted)
    real = [row["case"] for row in whole["sections"]["tokens"]["rows"]]
    assert sum(not name.startswith("random") for name in real) == len(real) / 2
    loads = [row for row in whole["sections"]["idle"]["rows"] if "load" in row]
    assert all(0 < row["idle"] < 1 for row in loads)


# --- Sections that fail -----------------------------------------------------------------------


def broken(_machine: Machine, report: Report) -> None:
    report.row(first=1)
    raise RuntimeError("illegal address")


def fine(_machine: Machine, report: Report) -> None:
    report.holds("one is one", True)


def test_a_section_that_raises_is_reported_and_the_others_run(tmp_path: Path) -> None:
    sections = {"broken": broken, "fine": fine}
    now = time.monotonic()
    child.run(Cpu, ["broken", "fine"], sections.__getitem__, tmp_path, now, now + 60)
    summary = Summary(tmp_path, ["broken", "fine"], tmp_path / "all.json")
    summary.write()
    whole = json.loads((tmp_path / "all.json").read_text())
    assert whole["failed"] == summary.failed() == ["broken"]
    assert whole["sections"]["broken"]["error"] == "RuntimeError: illegal address"
    assert whole["sections"]["broken"]["rows"] == [{"first": 1}]
    assert whole["sections"]["fine"]["status"] == "passed"
    assert "RuntimeError: illegal address" in summary.text()


def test_where_there_is_no_gpu_each_section_says_so(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    now = time.monotonic()
    child.run(
        lambda: choose_machine("", dry=False), ["one"], lambda _: fine, tmp_path, now, now + 1
    )
    assert found(tmp_path, "one")["error"] == "RuntimeError: torch sees no GPU here: take --dry"


DIES = """
import json, os, sys
sys.stdin.readline()
folder, section = sys.argv[1:]
found = {"section": section, "status": "running", "seconds": 1.0, "error": "", "rows": [{"a": 1}]}
with open(f"{folder}/{section}.json", "w") as file:
    json.dump(found, file)
HOW
"""


def ended(tmp_path: Path, how: str, groups: Sequence[Sequence[str]], seconds: float) -> Summary:
    """What is left of sections whose processes do `how` after their first row."""
    names = [name for group in groups for name in group]
    summary = Summary(tmp_path, names, tmp_path / "all.json")
    command = ["-c", DIES.replace("HOW", how), str(tmp_path)]
    run_stages([Stage([group], 1.0) for group in groups], command, summary, seconds)
    assert json.loads((tmp_path / "all.json").read_text())["failed"] == names
    return summary


def test_a_process_that_dies_takes_no_other_with_it(tmp_path: Path) -> None:
    summary = ended(tmp_path, "os.abort()", [["one"], ["other"]], 20.0)
    for section in summary.sections().values():
        assert section["error"] == "its process ended: code -6"
        assert section["rows"] == [{"a": 1}]


def test_a_process_that_hangs_is_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    summary = ended(tmp_path, "import time; time.sleep(60)", [["one"]], 1.5)
    assert time.monotonic() - began < 20
    assert "killed after" in summary.sections()["one"]["error"]


def test_an_interrupted_case_fails_its_section_and_the_next_case_runs(
    report: Report, tmp_path: Path
) -> None:
    with report.case("first"):
        raise ValueError("wrong")
    with report.case("second"):
        report.holds("second", True)
    report.end()
    assert found(tmp_path)["status"] == "failed"
    assert [row["ok"] for row in found(tmp_path)["rows"]] == [False, True]


# --- What a case finds ------------------------------------------------------------------------


def test_rows_are_compared_one_by_one(report: Report, tmp_path: Path) -> None:
    expected = torch.randn(4, 100)
    report.close_to("near", expected * 1.00001, expected)
    off = expected.clone()
    off[2] *= 1.01
    report.close_to("one row is off", off, expected)
    off[2, 3] = torch.nan
    report.close_to("NaN", off, expected, within=1.0)
    report.close_to("zeros", torch.zeros(2, 3), torch.zeros(2, 3))
    report.equal("same", expected, expected.clone())
    report.equal("one differs", off, expected)
    assert [row["ok"] for row in found(tmp_path)["rows"]] == [True, False, False, True, True, False]


def test_idle_is_what_lies_between_pieces_of_work() -> None:
    assert idle_share([(0.0, 1.0), (1.5, 3.0), (3.0, 5.0)]) == pytest.approx(0.1)
    assert idle_share([(0.0, 2.0), (1.0, 4.0)]) == 0.0


class VirtualStream:
    """Does work at once, on a clock that the work moves."""

    def __init__(self) -> None:
        self.now, self.num_runs = 0.0, 0

    def work(self) -> None:
        self.num_runs += 1
        self.now += 2e-4

    def sum(self) -> None:
        """Of the swept memory."""
        self.now += 7e-5

    def note(self) -> None: ...

    def synchronize(self) -> None: ...

    def release(self) -> None: ...

    def run(self, work: Callable[[], None]) -> None:
        began = self.now
        work()
        self.now += 1e-5  # what it takes to launch
        self.last = (began, self.now)

    def spans(self) -> list[tuple[float, float]]:
        return [self.last]

    def capture(self, work: Callable[[], Any]) -> Any:
        return SimpleNamespace(replay=work)


def test_a_run_is_timed_without_its_sweeps_and_its_launch() -> None:
    stream = VirtualStream()
    clock = Clock(stream, torch.device("cpu"), 4, repeats=3)  # type: ignore[arg-type]
    clock._swept = stream  # type: ignore[assignment]
    assert clock.seconds(stream.work) == pytest.approx(2e-4)
    assert stream.num_runs == 2 + 3 * 19  # 4 milliseconds, by a first look of 210 microseconds


# --- Around it --------------------------------------------------------------------------------


def test_sections_that_take_times_have_the_machine_to_themselves() -> None:
    alone = [stage.sections for stage in choose([], dry=False) if len(stage.groups) == 1]
    assert alone == [["rates"], ["times"], ["decode"], ["idle"]]
    assert [stage.sections for stage in choose(["idle", "bits"], dry=False)] == [["bits"], ["idle"]]
    assert [len(stage.groups) for stage in choose([], dry=True)] == [2]
    for stages in (STAGES, DRY_STAGES):
        assert [name for stage in stages for name in stage.sections] == list(MODULES)


WITHOUT = """
import importlib.machinery
from importlib.machinery import PathFinder
find_spec = PathFinder.find_spec
PathFinder.find_spec = lambda name, *a: None if name in MISSING else find_spec(name, *a)
from tests.gpu import sections, stand_ins
assert stand_ins.provide() == ["structlog"]
for name in sections.MODULES:
    sections.load(name)
from tests.gpu.machine import choose
from tests.gpu.tokens import real_models
class Report:
    note = print
assert real_models(choose("MODEL", dry=True), Report) is None
"""
OPTIONAL = ("structlog", "orjson", "redis", "gguf", "safetensors", "transformers", "pytest")


def test_it_needs_torch_triton_and_numpy_alone(tmp_path: Path) -> None:
    make_reference("llama").save_pretrained(tmp_path)
    code = WITHOUT.replace("MISSING", repr(OPTIONAL)).replace("MODEL", str(tmp_path))
    environment = {"TRITON_INTERPRET": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "skipped: no real model (gguf is not installed)\n"


def test_a_stand_in_logs_as_the_worker_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert stand_ins.provide() == []  # the real one is here
    log = stand_ins.structlog().get_logger()
    log.warning("no time", captured=3)
    assert capsys.readouterr().out == "no time captured=3\n"
