"""The matrix products, at the shapes of two models; `compile_cases.py` has the other kernels."""

import torch

from gpu_worker.kernels.fixed_matmul_triton import _fixed_matmul_kernel
from gpu_worker.kernels.fixed_matmul_triton import tile_of as fixed_tile_of
from gpu_worker.kernels.int4_matmul_triton import OUTPUTS as INT4_OUTPUTS
from gpu_worker.kernels.int4_matmul_triton import _int4_matmul_kernel
from gpu_worker.kernels.small_matmul_triton import (
    OUTPUTS,
    SUMMED,
    _small_matmul_kernel,
    _sum_parts_kernel,
    inputs_of,
    parts_of,
    stages_of,
)
from gpu_worker.kernels.widen_triton import BLOCK as WIDENED
from gpu_worker.kernels.widen_triton import OUTPUTS as WIDENED_OUTPUTS
from gpu_worker.kernels.widen_triton import _widen_bytes_kernel, _widen_int4_kernel
from tests.gpu_worker.compiled import Case

SHAPES = {  # E, F, V, H, G, D
    "8B": (4096, 14336, 128256, 32, 8, 128),
    "135M": (576, 1536, 49152, 9, 3, 64),
}
MATMUL = {"scale_ptr": "*fp32", "zero_ptr": "*fp32", "packed_ptr": "*u8"}


def matmul_cases(shape: str, is_hip: bool) -> list[Case]:
    """The layer from F to E, without a bias; and the head."""
    num_out, num_in = SHAPES[shape][:2]
    cases = []
    for rows in (16, 64):
        stages = 2 if is_hip else stages_of(rows)
        for name, kind in {"bf16": 0, "int8": 1, "fp8": 2}.items():
            parts = parts_of(num_out, num_in, OUTPUTS)
            sizes = {"I": num_in, "O": num_out, "P": parts, "ROWS": rows, "OUTPUTS": OUTPUTS}
            sizes |= {
                "INPUTS": inputs_of(kind, rows),
                "KIND": kind,
                "WIDE": False,
                "bias_ptr": None,
            }
            types = MATMUL | ({"weight_ptr": "*u8"} if kind else {})
            types |= {"sums_ptr": "*fp32" if parts > 1 else "*bf16"}
            if not kind or parts > 1:
                sizes["scale_ptr"] = None
            label = f"small_matmul {name} {rows}"
            cases.append(Case(label, _small_matmul_kernel, sizes, types, stages=stages))
        parts = parts_of(num_out, num_in, INT4_OUTPUTS)
        sizes = {"J": num_in // 128, "HALF": 64, "O": num_out, "P": parts, "ROWS": rows}
        sizes |= {"OUTPUTS": INT4_OUTPUTS, "WIDE": False, "bias_ptr": None}
        types = MATMUL | {"sums_ptr": "*fp32" if parts > 1 else "*bf16"}
        label = f"int4_matmul {rows}"
        cases.append(Case(label, _int4_matmul_kernel, sizes, types, stages=stages))
    sizes = {"O": num_out, "P": 4, "BLOCK": SUMMED, "bias_ptr": None}
    types = MATMUL | {"sums_ptr": "*fp32"}
    return [
        *cases,
        Case("sum_parts", _sum_parts_kernel, sizes, types),
        *widen_cases(num_out, num_in),
        *fixed_cases(shape, is_hip),
    ]


def widen_cases(num_out: int, num_in: int) -> list[Case]:
    groups = {"J": num_in // 128, "O": num_out, "HALF": 64, "OUTPUTS": WIDENED_OUTPUTS}
    whole, types = {"O": num_out, "I": num_in, "BLOCK": WIDENED}, MATMUL | {"codes_ptr": "*u8"}
    return [
        Case("widen_int4", _widen_int4_kernel, groups | {"P": 1}, types),
        Case("widen_int4, two planes", _widen_int4_kernel, groups | {"P": 2}, types),
        Case("widen_bytes fp8", _widen_bytes_kernel, whole | {"IS_FP8": True}, types),
    ]


def fixed_cases(shape: str, is_hip: bool) -> list[Case]:
    width, ffn_width = SHAPES[shape][:2]
    cases = []
    for name, dtype, num_out, num_in in (
        ("bf16 F to E", torch.bfloat16, width, ffn_width),
        ("bf16 E to V", torch.bfloat16, SHAPES[shape][2], width),
        ("fp32 F to E", torch.float32, width, ffn_width),
    ):
        tile = fixed_tile_of(num_out, dtype, is_hip)
        sizes = {"I": num_in, "O": num_out, "WIDE": False, "bias_ptr": None}
        sizes |= {"ROWS": tile.rows, "OUTPUTS": tile.outputs, "INPUTS": tile.inputs}
        kind = "*bf16" if dtype == torch.bfloat16 else "*fp32"
        types = dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), kind)
        label = f"fixed_matmul {name}"
        cases.append(Case(label, _fixed_matmul_kernel, sizes, types, tile.warps, tile.stages))
    return cases
