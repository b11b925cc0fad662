"""Compiles the Triton kernels for a GPU that need not be there; run with TRITON_INTERPRET=0.

python compile_kernels.py cuda 90 32     backend, architecture, threads of a warp
"""

import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gpu_worker.kernels.attention_split_triton import add_splits_kernel
from gpu_worker.kernels.attention_tile_triton import attention_kernel
from gpu_worker.kernels.block_copy_triton import _block_copy_kernel
from gpu_worker.kernels.rms_norm_triton import _rms_norm_kernel
from gpu_worker.kernels.rotary_kv_write_triton import _rotary_kv_write_kernel
from gpu_worker.kernels.silu_mul_triton import _silu_mul_kernel

TYPES = {
    "cos_sin_ptr": "*fp32",
    "block_tables_ptr": "*i32",
    "cu_seqlens_ptr": "*i32",
    "lengths_ptr": "*i32",
    "positions_ptr": "*i32",
    "slot_mapping_ptr": "*i64",
    "pairs_ptr": "*i64",
    "acc_ptr": "*fp32",
    "stats_ptr": "*fp32",
    "inner": "fp32",
    "outer": "fp32",
    "eps": "fp32",
    "scale": "fp32",
}
HEADS = {"C": 3, "G": 3, "R": 3, "D": 64, "PADDED_D": 64, "WINDOW": 0, "v_scale_ptr": None}
TILE = {"B": 16, "TILE": 5, "M": 16, "L": 64, "k_scale_ptr": None, "DOT": tl.bfloat16}
ROTARY = {"H": 9, "G": 3, "D": 64, "W": 64, "B": 16, "T": 8, "FP8": False}
UNSCALED = {"k_scale_ptr": None, "v_scale_ptr": None}
CASES = [  # compiled_attention.py has more of attention, compile_cases.py of the others
    (attention_kernel, HEADS | TILE | {"IS_SPLIT": True, "IS_CAPPED": True}),
    (add_splits_kernel, HEADS | {"AT_ONCE": 16}),
    (_block_copy_kernel, {"E": 3072, "BLOCK": 1024}),
    (_rms_norm_kernel, {"HAS_RESIDUAL": True, "E": 576, "BLOCK": 1024}),
    (
        _rotary_kv_write_kernel,
        ROTARY | UNSCALED | {"HAS_Q_NORM": True, "HAS_K_NORM": False},
    ),
    (_silu_mul_kernel, {"BLOCK": 1024}),
]


def compile_all(target: GPUTarget) -> None:
    for kernel, constants in CASES:
        signature = {}
        for name in kernel.arg_names:
            default = "*bf16" if name.endswith("_ptr") else "i32"
            signature[name] = "constexpr" if name in constants else TYPES.get(name, default)
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        compiled = triton.compile(ASTSource(kernel, signature, places), target=target)
        print(kernel.fn.__name__, target.arch, compiled.metadata.shared, "bytes of shared memory")


if __name__ == "__main__":
    backend, architecture, warp_size = sys.argv[1:]
    arch = int(architecture) if architecture.isdigit() else architecture
    compile_all(GPUTarget(backend, arch, int(warp_size)))
