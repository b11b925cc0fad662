"""All kernels but attention's, at the shapes of two models.

Llama 3.1 8B: E 4096, F 14336, V 128256, 32 and 8 heads of 128. SmolLM2 135M: 576, 1536, 49152,
9 and 3 heads of 64.

python -m tests.gpu_worker.compile_cases sm_90 8B [name ...]     with TRITON_INTERPRET=0: as JSON
"""

import json
import sys
from dataclasses import asdict

from gpu_worker.kernels.block_copy_triton import BLOCK as COPIED
from gpu_worker.kernels.block_copy_triton import _block_copy_kernel
from gpu_worker.kernels.edit_logits_triton import BLOCK as EDITS
from gpu_worker.kernels.edit_logits_triton import _edit_logits_kernel
from gpu_worker.kernels.gather_norm_triton import _embed_norm_kernel, _last_norm_kernel
from gpu_worker.kernels.gelu_mul_triton import _gelu_mul_kernel
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
from tests.gpu_worker.compile_matmul_cases import SHAPES, matmul_cases
from tests.gpu_worker.compiled import Case, compile_for

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
        Case(
            "block_copy",
            _block_copy_kernel,
            {"E": groups * 16 * size, "BLOCK": COPIED},
            {"pairs_ptr": "*i64"},
        ),
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


def all_cases(shape: str, target: str) -> list[Case]:
    cases = layer_cases(shape) + sampling_cases(shape) + logits_cases(shape)
    return cases + matmul_cases(shape, target.startswith("gfx"))


if __name__ == "__main__":
    target, shape, *names = sys.argv[1:]
    cases = [case for case in all_cases(shape, target) if case.name in names or not names]
    print(json.dumps({case.name: asdict(compile_for(case, target)) for case in cases}))
