"""Attention compiled for four GPUs: nothing spilled, room for all, and as the manual says.

python -m tests.gpu_worker.test_compiled_attention     writes both tables into docs/kernels.md
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

from tests.gpu_worker import attention_costs
from tests.gpu_worker.compiled import SHARED_LIMITS

MANUAL = Path(__file__).parents[2] / "docs/kernels.md"
COMPILED, COSTS = "compiled attention", "attention costs"  # between these marks in the manual
Table = dict[str, dict[str, Any]]  # by kernel


def compile_all(target: str, shape: str, cache: str, *names: str) -> Table:
    program = [sys.executable, "-m", "tests.gpu_worker.compiled_attention", target, shape, *names]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache}
    run = subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert run.returncode == 0, run.stderr
    table: Table = json.loads(run.stdout)
    return table


def check(target: str, shape: str, cache: Path, *names: str) -> None:
    table = compile_all(target, shape, str(cache), *names)
    limit = SHARED_LIMITS[target] * 1024
    for name, code in table.items():
        assert code["spilled"] == 0, name
        assert code["shared"] <= limit, name
        assert code["is_wide"], name
        assert told(shape, target)[name] == cell_of(code), name


def told(shape: str, target: str) -> dict[str, str]:
    """What the manual says of a shape on a target, by kernel."""
    part = marked(MANUAL.read_text(), COMPILED)[1]
    assert f"Triton {triton.__version__}" in part
    lines = part[part.index(f"At {shape}") :].split("\n\n")[1].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1 + list(SHARED_LIMITS).index(target)] for row in rows}


def cell_of(code: dict[str, Any]) -> str:
    return f"{code['registers']}, {code['shared'] / 1024:.3g}"


def marked(manual: str, mark: str) -> tuple[str, str, str]:
    """What lies before, between and behind the marks."""
    begin, end = f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->"
    assert begin in manual
    assert end in manual
    before, _, rest = manual.partition(begin)
    part, _, after = rest.partition(end)
    return before + begin, part, end + after


def test_attention_compiled_for_an_h200(tmp_path: Path) -> None:
    check("sm_90", "8B", tmp_path, "decode bf16", "prompt bf16", "add_splits")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", ["8B", "135M"])
@pytest.mark.parametrize("target", SHARED_LIMITS)
def test_attention_compiled_for_every_gpu(target: str, shape: str, tmp_path: Path) -> None:
    check(target, shape, tmp_path)


def test_the_manual_has_the_costs_that_follow_from_the_shapes() -> None:
    assert marked(MANUAL.read_text(), COSTS)[1].strip() == attention_costs.table()


def compiled_tables() -> str:
    lines = [f"Triton {triton.__version__}.", ""]
    with TemporaryDirectory() as cache:
        for shape in ("8B", "135M"):
            tables = [compile_all(target, shape, cache) for target in SHARED_LIMITS]
            lines += [f"At {shape}:", "", f"| kernel | {' | '.join(SHARED_LIMITS)} |"]
            lines += ["|---" * (len(tables) + 1) + "|"]
            for name in tables[0]:
                cells = " | ".join(cell_of(table[name]) for table in tables)
                lines.append(f"| {name} | {cells} |")
            lines.append("")
    return "\n".join(lines)


def write() -> None:
    for mark, text in ((COSTS, attention_costs.table() + "\n"), (COMPILED, compiled_tables())):
        before, _, after = marked(MANUAL.read_text(), mark)
        MANUAL.write_text(before + text + after)


if __name__ == "__main__":
    write()
