"""Makes and updates `.venv`, then runs the command in it. Standard library only.

A record in the environment says what is installed in it; it is written last, so an installation
that was interrupted is gone on with at the next start.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec

from cli.install import ROOT, InstallError, has_gpu, install, project
from cli.main import COMMANDS, HELP
from cli.main import main as run
from common.config import environment, variable

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
RECORD = VENV / "chairlift.json"
RUN = ("gateway", "scheduler", "worker", "embedded")
EXTRAS = {"test": ("test",), "lint": ("lint",)}  # what commands need beside RUN


@dataclass(frozen=True)
class Installed:
    key: str = ""  # hash of all that decides what is to be installed
    root: str = ""  # where the environment was made: its scripts name this folder
    extras: tuple[str, ...] = ()


def main(arguments: Sequence[str]) -> int:
    """Replaces this process by the command; returns an exit status where that is not to be."""
    command = arguments[0] if arguments else ""
    if command not in COMMANDS:
        return run(arguments)  # help, the version, mistakes: nothing is installed for those
    if HELP & set(arguments):
        with contextlib.suppress(ModuleNotFoundError):  # of a command that needs packages
            return run(arguments)
    try:
        _prepare((*RUN, *EXTRAS.get(command, ())))
    except InstallError as error:
        sys.stderr.write(f"chairlift: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nchairlift: interrupted; the next start goes on from here\n")
        return 130
    # Where data lies must not depend on the folder that the command is called from.
    data_dir = environment().get(variable("data_dir"), str(ROOT / "data"))
    changes = {variable("data_dir"): data_dir}
    return os.execve(PYTHON, [str(PYTHON), "-m", "cli.main", *arguments], environment(changes))


def _prepare(extras: Sequence[str]) -> None:
    wanted = Installed(_key(), str(ROOT), tuple(extras))
    if _suffices(_read_record(), wanted):
        return
    with _lock():
        found = _read_record()
        if _suffices(found, wanted):
            return  # by another ./chairlift, while this one waited
        if not os.access(PYTHON, os.X_OK) or found.root not in ("", wanted.root):
            _make_venv()
            found = Installed()
        if found.key == wanted.key:
            wanted = Installed(
                wanted.key, wanted.root, tuple(sorted({*found.extras, *wanted.extras}))
            )
        _say("installing what is missing; the first time takes minutes")
        _forget_torn_packages()
        RECORD.unlink(missing_ok=True)
        log = VENV / "install.log"
        install(PYTHON, wanted.extras, gpu=has_gpu(), log=log, say=_say)
        RECORD.write_text(json.dumps(asdict(wanted)))


def _suffices(found: Installed, wanted: Installed) -> bool:
    same = (found.key, found.root) == (wanted.key, wanted.root)
    return same and set(wanted.extras) <= set(found.extras) and os.access(PYTHON, os.X_OK)


def _key() -> str:
    parts = [project(), (ROOT / "constraints.txt").read_text(), has_gpu()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _read_record() -> Installed:
    try:
        fields = json.loads(RECORD.read_text())
        return Installed(fields["key"], fields["root"], tuple(fields["extras"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Installed()


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """One installation at a time. The folder itself is the lock, so that nothing is left behind."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another ./chairlift that is installing")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _make_venv() -> None:
    if find_spec("ensurepip") is None or find_spec("venv") is None:
        raise InstallError("Python's venv module is missing. On Debian: apt install python3-venv")
    _say(f"making {VENV}")
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)],
        capture_output=True,
        text=True,
        check=False,
        env=environment({"PYTHONPATH": ""}),
    )
    if made.returncode:
        reason = (made.stdout + made.stderr).strip().splitlines() or [f"exit {made.returncode}"]
        shutil.rmtree(VENV, ignore_errors=True)
        raise InstallError(f"cannot make {VENV}: {reason[-1]}")


def _forget_torn_packages() -> None:
    """pip writes INSTALLER after a package's files: without it, they may be incomplete."""
    for packages in VENV.glob("lib/python*/site-packages"):
        for info in packages.glob("*.dist-info"):
            if not (info / "INSTALLER").exists():
                shutil.rmtree(info)
        for leftover in packages.glob("~*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _say(text: str) -> None:
    sys.stderr.write(f"chairlift: {text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
