"""Which formats `quantization_config` of a config.json means, and what is refused by name; pure.

Which layers are quantised, with how many bits and in which groups, is read off the tensors: the
lists of layers that are not (`ignore`, `modules_to_not_convert`) only repeat it. How activations
were to be quantised is ignored: they stay in 16 bits, which is nearer to the model.
"""

from collections.abc import Mapping
from typing import Any

from gpu_worker.engine import ModelError
from gpu_worker.quantised_formats import AWQ, BYTES, GPTQ, GPTQ_V2, PACKED, Format

Config = Mapping[str, Any]

SUPPORTED = (
    "awq (gemm, 4 bits), gptq and gptq_v2 (4 and 8 bits), fp8 (one scale for a tensor or channel), "
    "compressed-tensors (pack-quantized, int-quantized, float-quantized)"
)


def formats_of(config: Config) -> tuple[Format, ...]:
    """The formats that layers of the model may have; none: it is not quantised.

    Raises ModelError with what is not supported, and what is.
    """
    quantisation = config.get("quantization_config") or config.get("compression_config")
    if not quantisation:
        return ()
    method = str(quantisation.get("quant_method", "none"))
    if method not in METHODS:
        raise _refused(method)
    return METHODS[method](quantisation)


def _awq(config: Config) -> tuple[Format, ...]:
    if (version := str(config.get("version") or config.get("format") or "gemm").lower()) != "gemm":
        raise _refused(f"awq of the layout {version}")
    if (bits := config.get("bits", config.get("w_bit", 4))) != 4:
        raise _refused(f"awq of {bits} bits")
    return (AWQ,)


def _gptq(config: Config) -> tuple[Format, ...]:
    layout = str(config.get("checkpoint_format") or config.get("format") or "gptq").lower()
    if config.get("is_marlin_format"):
        layout = "marlin"
    if layout not in {"gptq", "gptq_v2"}:
        raise _refused(f"gptq of the layout {layout}")
    if (bits := config.get("bits", 4)) not in {4, 8}:
        raise _refused(f"gptq of {bits} bits")
    return (GPTQ_V2,) if layout == "gptq_v2" else (GPTQ,)


def _fp8(config: Config) -> tuple[Format, ...]:
    if block := config.get("weight_block_size"):
        raise _refused(f"fp8 in blocks of {'x'.join(map(str, block))}")
    return (BYTES,)


def _compressed_tensors(config: Config) -> tuple[Format, ...]:
    if (sparsity := config.get("sparsity_config") or {}) and sparsity.get("format") != "dense":
        raise _refused(f"compressed-tensors with sparsity {sparsity.get('format')}")
    if config.get("transform_config"):
        raise _refused("compressed-tensors with transforms")
    groups = (config.get("config_groups") or {}).values()
    layouts = {str(group.get("format") or config.get("format")) for group in groups}
    for layout in sorted(layouts):
        if layout not in COMPRESSED:
            raise _refused(f"compressed-tensors of the layout {layout}")
    for group in groups:
        _check_weights(group.get("weights") or {})
    return tuple({COMPRESSED[layout].name: COMPRESSED[layout] for layout in layouts}.values())


def _check_weights(weights: Config) -> None:
    kind, bits, strategy = (weights.get(key) for key in ("type", "num_bits", "strategy"))
    if (kind, bits) not in {("int", 4), ("int", 8), ("float", 8)}:
        raise _refused(f"compressed-tensors with weights of {kind} {bits}")
    if strategy not in {"tensor", "channel", "group"}:
        raise _refused(f"compressed-tensors with the strategy {strategy}")


def _refused(what: str) -> ModelError:
    return ModelError(f"quantisation {what} is not supported; supported: {SUPPORTED}")


COMPRESSED = {
    "pack-quantized": PACKED,
    "int-quantized": BYTES,
    "float-quantized": BYTES,
    "naive-quantized": BYTES,
}
METHODS = {
    "awq": _awq,
    "gptq": _gptq,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
}
