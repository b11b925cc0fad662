"""Attention's kernels at the shapes of two models, cut as a launcher would for each target.

Llama 3.1 8B: 32 and 8 heads of 128. SmolLM2 135M: 9 and 3 heads of 64.

python -m tests.gpu_worker.compiled_attention sm_90 8B [name ...]     with TRITON_INTERPRET=0: JSON
"""

import json
import sys
from dataclasses import asdict

import triton.language as tl

from gpu_worker.kernels.attention_plan import Schedule, make_plan
from gpu_worker.kernels.attention_split_triton import SPLITS_AT_ONCE, add_splits_kernel
from gpu_worker.kernels.attention_tile_triton import attention_kernel
from tests.gpu_worker.compiled import Case, compile_for

HEADS = {"8B": (8, 4, 128), "135M": (3, 3, 64)}  # G, R, D
SCHEDULES = {"sm_80": "ampere", "sm_90": "hopper", "sm_100": "blackwell", "gfx942": "cdna"}
STEPS = {"decode": (64, 64), "prompt": (2048, 1), "fixed": (64, 64)}  # rows, sequences
CONTEXT, BLOCK_SIZE = 8192, 16
TYPES = {
    "block_tables_ptr": "*i32",
    "cu_seqlens_ptr": "*i32",
    "lengths_ptr": "*i32",
    "k_scale_ptr": "*fp32",
    "v_scale_ptr": "*fp32",
    "acc_ptr": "*fp32",
    "stats_ptr": "*fp32",
    "inner": "fp32",
    "outer": "fp32",
}
NO_SCALES = {"k_scale_ptr": None, "v_scale_ptr": None}


def sizes(shape: str, window: int = 0) -> dict[str, object]:
    num_groups, heads, head_size = HEADS[shape]
    return {
        "C": num_groups,
        "G": num_groups,
        "R": heads,
        "D": head_size,
        "PADDED_D": head_size,
        "WINDOW": window,
    }


def tile_case(shape: str, target: str, step: str, kind: str) -> Case:
    num_groups, heads, head_size = HEADS[shape]
    schedule = Schedule(target=SCHEDULES[target], deterministic=step == "fixed")
    cut = make_plan(*STEPS[step], num_groups, heads, head_size, CONTEXT, schedule)
    constants = sizes(shape, 4096 if kind == "window, cap" else 0)
    constants |= {"B": BLOCK_SIZE, "TILE": cut.tokens_of_tile, "M": cut.rows, "L": cut.tile.tokens}
    constants |= {"IS_SPLIT": True, "IS_CAPPED": kind == "window, cap"}
    constants |= {"DOT": tl.float16 if kind == "fp8" else tl.bfloat16}
    types = dict(TYPES)
    if kind == "fp8":
        has_type = target in {"sm_90", "sm_100"}
        types |= dict.fromkeys(("k_cache_ptr", "v_cache_ptr"), "*fp8e4nv" if has_type else "*u8")
    else:
        constants |= NO_SCALES
    name = f"{step} {kind}"
    return Case(name, attention_kernel, constants, types, cut.tile.warps, cut.tile.stages)


def all_cases(shape: str, target: str) -> list[Case]:
    cases = [
        tile_case(shape, target, step, kind)
        for step in ("decode", "prompt", "fixed")
        for kind in ("bf16", "fp8", "window, cap")
    ]
    constants = sizes(shape) | {"AT_ONCE": SPLITS_AT_ONCE, "v_scale_ptr": None}
    return [*cases, Case("add_splits", add_splits_kernel, constants, TYPES, warps=2)]


if __name__ == "__main__":
    target, shape, *names = sys.argv[1:]
    cases = [case for case in all_cases(shape, target) if case.name in names or not names]
    print(json.dumps({case.name: asdict(compile_for(case, target)) for case in cases}))
