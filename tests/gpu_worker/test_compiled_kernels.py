"""The kernels compiled for four GPUs: nothing spilled, room for all, and as the manual says.

python -m tests.gpu_worker.test_compiled_kernels     writes the table into docs/kernels.md
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import triton

from tests.gpu_worker import kernel_costs
from tests.gpu_worker.compiled import SHARED_LIMITS

MANUAL = Path(__file__).parents[2] / "docs/kernels.md"
BEGIN, END = "<!-- compiled: begin -->", "<!-- compiled: end -->"
# They gather single numbers, or a few hundred in all.
NARROW = {"edit_logits", "logprobs: rows", "keep_tokens", "pick_tokens"}

SOME = (  # of each kind one: the others take their time with -m slow
    "rms_norm",
    "rotary_kv_write fp8",
    "silu_mul",
    "sample: draw",
    "edit_logits",
    "logprobs: rows",
    "pick_tokens",
    "small_matmul fp8 64",
    "int4_matmul 16",
    "widen_int4",
    "fixed_matmul bf16 F to E",
)

Table = dict[str, dict[str, Any]]  # by kernel


def compile_all(target: str, shape: str, cache: str, *names: str) -> Table:
    program = [sys.executable, "-m", "tests.gpu_worker.compile_cases", target, shape, *names]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache}
    run = subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert run.returncode == 0, run.stderr
    table: Table = json.loads(run.stdout)
    return table


def check(target: str, shape: str, cache: Path, *names: str) -> None:
    table = compile_all(target, shape, str(cache), *names)
    assert {name for name, code in table.items() if code["spilled"]} == set()
    limit = SHARED_LIMITS[target] * 1024
    assert {name for name, code in table.items() if code["shared"] > limit} == set()
    assert {name for name, code in table.items() if not code["is_wide"]} <= NARROW
    manual = MANUAL.read_text()
    assert f"Triton {triton.__version__}" in manual
    part = manual[manual.index(BEGIN) : manual.index(END)]
    told = {
        cells[0]: cells[1 + list(SHARED_LIMITS).index(target)]
        for line in part[part.index(f"At {shape}") :].split("\n\n")[1].splitlines()[2:]
        if (cells := [cell.strip() for cell in line.strip("|").split("|")])
    }
    assert set(table) == set(names or told)
    assert {name: told[name] for name in table} == {
        name: cell_of(code) for name, code in table.items()
    }


def cell_of(code: dict[str, Any]) -> str:
    return f"{code['registers']}, {code['shared'] / 1024:.3g}"


def test_the_kernels_compiled_for_an_h200(tmp_path: Path) -> None:
    check("sm_90", "8B", tmp_path, *SOME)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", ["8B", "135M"])
@pytest.mark.parametrize("target", SHARED_LIMITS)
def test_the_kernels_compiled_for_every_gpu(target: str, shape: str, tmp_path: Path) -> None:
    check(target, shape, tmp_path)


def test_the_manual_has_the_costs_that_follow_from_the_shapes() -> None:
    assert kernel_costs.table() in MANUAL.read_text()


def write() -> None:
    lines = [BEGIN, f"Triton {triton.__version__}.", ""]
    with TemporaryDirectory() as cache:
        for shape in ("8B", "135M"):
            tables = [compile_all(target, shape, cache) for target in SHARED_LIMITS]
            lines += [f"At {shape}:", "", f"| kernel | {' | '.join(SHARED_LIMITS)} |"]
            lines += ["|---" * (len(tables) + 1) + "|"]
            for name in tables[0]:
                cells = " | ".join(cell_of(table[name]) for table in tables)
                lines.append(f"| {name} | {cells} |")
            lines.append("")
    manual = MANUAL.read_text()
    before, after = manual[: manual.index(BEGIN)], manual[manual.index(END) :]
    MANUAL.write_text(before + "\n".join(lines) + after)


if __name__ == "__main__":
    write()
