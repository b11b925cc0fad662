"""Triton kernels compiled for GPUs that need not be there, and what their machine code says.

Only where TRITON_INTERPRET is 0.
"""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_LIMITS = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "gfx942": 64}  # KiB of a program
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
WIDE = re.compile(
    r"ld\.global[.\w:]*\.v4\.b32|ld\.global[.\w:]*\.v2\.b64|load_dwordx4"
    r"|cp\.async\.cg\S* \[[^]]*\], \[[^]]*\], 0x10"
)


@dataclass(frozen=True)
class Case:
    """One kernel at one shape. Pointers and numbers not in `types` are bf16, and int32."""

    name: str
    kernel: Any
    constants: Mapping[str, Any]
    types: Mapping[str, str] = field(default_factory=dict)
    warps: int = 4
    stages: int = 2


@dataclass(frozen=True)
class Compiled:
    registers: int
    spilled: int  # bytes of stack of a thread on CUDA, registers on HIP
    shared: int  # bytes
    is_wide: bool  # it loads 16 bytes at once


def compile_for(case: Case, target: str) -> Compiled:
    names = case.kernel.arg_names
    assert set(case.constants) <= set(names), set(case.constants) - set(names)
    signature, aligned = {}, {}
    for place, name in enumerate(names):
        default = "*bf16" if name.endswith("_ptr") else "i32"
        kind = "constexpr" if name in case.constants else case.types.get(name, default)
        signature[name] = kind
        # As the launcher finds it: memory begins, and strides are, at multiples of 16.
        if kind.startswith(("*", "i")) and not case.kernel.params[place].do_not_specialize:
            aligned[(place,)] = [["tt.divisibility", 16]]
    constants = {(names.index(name),): value for name, value in case.constants.items()}
    options = {"num_warps": case.warps, "num_stages": case.stages}
    source = ASTSource(case.kernel, signature, constants, aligned)
    compiled = triton.compile(source, target=TARGETS[target], options=options)
    shared = compiled.metadata.shared
    if TARGETS[target].backend == "hip":
        code = compiled.asm["amdgcn"]
        spilled = _number(r"vgpr_spill_count: *(\d+)", code) + _number(
            r"private_segment_fixed_size: *(\d+)", code
        )
        return Compiled(
            _number(r"\.vgpr_count: *(\d+)", code), spilled, shared, bool(WIDE.search(code))
        )
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    spilled = _number(r"STACK:(\d+)", usage) + _number(r"LOCAL:(\d+)", usage)
    wide = bool(WIDE.search(compiled.asm["ptx"]))
    return Compiled(_number(r"REG:(\d+)", usage), spilled, shared, wide)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, pattern
    return int(found[1])
