"""All kernels but attention's and the block copy's, at the shapes of two models.

Llama 3.1 8B: E 4096, F 14336, V 128256, 32 and 8 heads of 128. SmolLM2 135M: 576, 1536, 49152,
9 and 3 heads of 64.

python -m tests.gpu_worker.compile_cases sm_90 8B     with TRITON_INTERPRET=0: as JSON
"""

import json
import sys
from dataclasses import asdict

from gpu_worker.kernels.edit_logits_triton import BLOCK as EDITS
from gpu_worker.kernels.edit_logits_triton import _edit_logits_kernel
from gpu_worker.kernels.gather_norm_triton import _embed_norm_kernel, _last_norm_kernel
from gpu_worker.kernels.gelu_mul_triton import _gelu_mul_kernel
from gpu_worker.kernels.int4_matmul_triton import OUTPUTS as INT4_OUTPUTS
from gpu_worker.kernels.int4_matmul_triton import _int4_matmul_kernel
from gpu_worker.kernels.last_tokens_triton import BLOCK as TOKENS
from gpu_worker.kernels.last_tokens_triton import _keep_tokens_kernel, _pick_tokens_kernel
from gpu_worker.kernels.logprobs_triton import _chunks_kernel, _rows_kernel
from gpu_worker.kernels.rms_norm_triton import _rms_norm_kernel, norm_warps
from gpu_worker.kernels.rotary_kv_write_triton import (
    _rotary_kv_write_kernel,
    tile_of,
    warps_of,
)
from gpu_worker.kernels.sample_draw_triton import _draw_kernel
from gpu_worker.kernels.sample_triton import CHUNK, SHORT_LIST, _peaks_kernel, _weights_kernel
from gpu_worker.kernels.silu_mul_triton import _silu_mul_kernel
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
from tests.gpu_worker.compiled import Case, compile_for

SHAPES = {  # E, F, V, H, G, D
    "8B": (4096, 14336, 128256, 32, 8, 128),
    "135M": (576, 1536, 49152, 9, 3, 64),
}
NORM = {"eps": "fp32", "tokens_ptr": "*i32", "last_ptr": "*i64"}
ROTARY = {
    "cos_sin_ptr": "*fp32",
    "positions_ptr": "*i32",
    "slot_mapping_ptr": "*i64",
    "eps": "fp32",
}
SAMPLE = {
    "logits_ptr": "*fp32",
    "weights_ptr": "*fp32",
    "temperature_ptr": "*fp32",
    "top_k_ptr": "*i32",
    "top_p_ptr": "*fp32",
    "min_p_ptr": "*fp32",
    "seed_ptr": "*i64",
    "position_ptr": "*i64",
    "peaks_ptr": "*fp32",
    "places_ptr": "*i32",
    "masses_ptr": "*i64",
    "counts_ptr": "*i32",
    "short_weights_ptr": "*fp32",
    "short_tokens_ptr": "*i32",
    "tokens_ptr": "*i64",
    "failed_ptr": "*i1",
}
LOGITS = SAMPLE | {
    "sums_ptr": "*fp32",
    "values_ptr": "*fp32",
    "chosen_ptr": "*fp32",
    "top_ptr": "*fp32",
    "top_tokens_ptr": "*i32",
    "penalised_starts_ptr": "*i32",
    "penalised_ptr": "*i32",
    "repetition_ptr": "*fp32",
    "presence_ptr": "*fp32",
    "frequency_ptr": "*fp32",
    "promised_ptr": "*i32",
    "added_starts_ptr": "*i32",
    "added_ptr": "*i32",
    "addend_ptr": "*fp32",
}
LAST_TOKENS = {
    "rows_ptr": "*i32",
    "source_ptr": "*i32",
    "last_tokens_ptr": "*i32",
    "out_ptr": "*i32",
}
MATMUL = {"scale_ptr": "*fp32", "zero_ptr": "*fp32", "packed_ptr": "*u8"}


def layer_cases(shape: str) -> list[Case]:
    width, _, _, heads, groups, size = SHAPES[shape]
    block = 1 << (width - 1).bit_length()
    norm = {"E": width, "BLOCK": block}
    rotary = {
        "HAS_Q_NORM": False,
        "HAS_K_NORM": False,
        "H": heads,
        "G": groups,
        "D": size,
        "W": size,
        "B": 16,
        "T": tile_of(heads),
    }
    plain = rotary | {"FP8": False, "k_scale_ptr": None, "v_scale_ptr": None}
    fp8 = rotary | {"FP8": True, "HAS_Q_NORM": True, "HAS_K_NORM": True}
    bytes_types = dict.fromkeys(("k_cache_ptr", "v_cache_ptr"), "*u8")
    bytes_types |= dict.fromkeys(("k_scale_ptr", "v_scale_ptr"), "*fp32")
    warps, heads_warps = norm_warps(block), warps_of(tile_of(heads), size)
    return [
        Case("rms_norm", _rms_norm_kernel, norm | {"HAS_RESIDUAL": True}, NORM, warps),
        Case("embed_norm", _embed_norm_kernel, norm, NORM, warps),
        Case("last_norm", _last_norm_kernel, norm, NORM, warps),
        Case("rotary_kv_write", _rotary_kv_write_kernel, plain, ROTARY, heads_warps),
        Case(
            "rotary_kv_write fp8", _rotary_kv_write_kernel, fp8, ROTARY | bytes_types, heads_warps
        ),
        Case("silu_mul", _silu_mul_kernel, {"BLOCK": 2048}),
        Case("gelu_mul erf", _gelu_mul_kernel, {"BLOCK": 2048, "TANH": False}),
        Case("gelu_mul tanh", _gelu_mul_kernel, {"BLOCK": 2048, "TANH": True}),
    ]


def sampling_cases(shape: str) -> list[Case]:
    vocab = SHAPES[shape][2]
    chunks = {"V": vocab, "CHUNK": CHUNK}
    padded = 1 << (-(-vocab // CHUNK) - 1).bit_length()
    rows = chunks | {"LIMIT": SHORT_LIST, "PADDED": padded}
    return [
        Case("sample: peaks", _peaks_kernel, chunks, SAMPLE, 8),
        Case("sample: weights", _weights_kernel, rows, SAMPLE, 8),
        Case("sample: draw", _draw_kernel, rows, SAMPLE, 8),
    ]


def logits_cases(shape: str) -> list[Case]:
    vocab, wanted = SHAPES[shape][2], 20
    chunks = -(-vocab // CHUNK)
    sizes = {"CHUNKS": chunks, "A": wanted}
    sizes["PADDED"] = 1 << (chunks - 1).bit_length()
    sizes["PADDED_LIST"] = 1 << (chunks * wanted - 1).bit_length()
    return [
        Case("edit_logits", _edit_logits_kernel, {"BLOCK": EDITS}, LOGITS),
        Case(
            "logprobs: chunks", _chunks_kernel, {"V": vocab, "CHUNK": CHUNK, "A": wanted}, LOGITS, 8
        ),
        Case("logprobs: rows", _rows_kernel, sizes, LOGITS),
        Case(
            "keep_tokens",
            _keep_tokens_kernel,
            {"BLOCK": TOKENS},
            LAST_TOKENS | {"tokens_ptr": "*i64"},
        ),
        Case(
            "pick_tokens",
            _pick_tokens_kernel,
            {"BLOCK": TOKENS},
            LAST_TOKENS | {"tokens_ptr": "*i32"},
        ),
    ]


def matmul_cases(shape: str, is_hip: bool) -> list[Case]:
    """The layer from F to E, without a bias."""
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
    ]


def widen_cases(num_out: int, num_in: int) -> list[Case]:
    groups = {"J": num_in // 128, "O": num_out, "HALF": 64, "OUTPUTS": WIDENED_OUTPUTS}
    whole, types = {"O": num_out, "I": num_in, "BLOCK": WIDENED}, MATMUL | {"codes_ptr": "*u8"}
    return [
        Case("widen_int4", _widen_int4_kernel, groups | {"P": 1}, types),
        Case("widen_int4, two planes", _widen_int4_kernel, groups | {"P": 2}, types),
        Case("widen_bytes fp8", _widen_bytes_kernel, whole | {"IS_FP8": True}, types),
    ]


def all_cases(shape: str, target: str) -> list[Case]:
    cases = layer_cases(shape) + sampling_cases(shape) + logits_cases(shape)
    return cases + matmul_cases(shape, target.startswith("gfx"))


if __name__ == "__main__":
    target, shape = sys.argv[1:]
    print(json.dumps({c.name: asdict(compile_for(c, target)) for c in all_cases(shape, target)}))
