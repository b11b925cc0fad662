"""Every way to get the CPU backend's kernels that a machine may have: compilers, instruction sets.

Whoever compiles for another instruction set than this machine's computes what a lesser machine
would. AMX has no lesser machine's stand-in: where it is there, `native` has it.
"""

import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from gpu_worker.native import build as build_module
from gpu_worker.native.ops import native_ops
from gpu_worker.ops import Ops, torch_ops

V3 = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@dataclass(frozen=True)
class Choice:
    options: tuple[str, ...] = ()  # of the compiler; none: whatever this machine has
    needs: frozenset[str] = frozenset()  # flags of the processor
    is_wheel: bool = False  # the compiler that is a wheel; else the system's
    has: frozenset[str] = frozenset()  # of MACROS, those that the compiler then defines


MACROS = {"__AVX2__", "__FMA__", "__AVX512F__", "__AVX512VNNI__", "__AVX512BF16__"}
AVX2 = frozenset({"__AVX2__", "__FMA__"})
NATIVE = {"native": Choice(), "ziglang": Choice(is_wheel=True)}
LESSER = {
    "avx512-vnni": Choice(  # Cascade Lake, Ice Lake
        ("-march=x86-64-v4", "-mavx512vnni"),
        V4 | {"avx512_vnni"},
        has=AVX2 | {"__AVX512F__", "__AVX512VNNI__"},
    ),
    "avx512": Choice(("-march=x86-64-v4",), V4, has=AVX2 | {"__AVX512F__"}),
    "avx2": Choice(("-march=x86-64-v3",), V3, has=AVX2),
    "x86-64": Choice(("-march=x86-64",)),
    "ziglang-avx2": Choice(("-march=x86_64_v3",), V3, is_wheel=True, has=AVX2),
}
CHOICES = {**NATIVE, **(LESSER if platform.machine() == "x86_64" else {})}
SELDOM = {"ziglang-avx2"}  # only with -m slow: both of its halves are tried otherwise

COMPILED = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SELDOM else []) for name in CHOICES
]


def command_of(name: str, folder: Path) -> build_module.Command:
    """The compiler of a choice, with its options. Skips the test where there is no such thing."""
    choice = CHOICES[name]
    if missing := choice.needs - _processor_flags():
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    for command in build_module.compilers(folder):
        if ("ziglang" in command) == choice.is_wheel:
            return (*command, *choice.options)
    pytest.skip("no ziglang" if choice.is_wheel else "no C compiler on the PATH")


def compiled(name: str, folder: Path, quantization: str = "none", threads: int = 2) -> Ops:
    """The operations by a choice, compiled in `folder`, and by no other compiler if that fails.

    "torch" are the references, which need none. A library has the threads that were last asked for.
    """
    if name == "torch":
        return torch_ops(quantization)
    command = command_of(name, folder / name)
    with patch.object(build_module, "compilers", lambda *_: iter([command])):
        return native_ops(folder / name, threads, quantization=quantization)


def _processor_flags() -> frozenset[str]:
    if sys.platform != "linux":
        return frozenset()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":")[1].split())
    return frozenset()
