"""Which quantisations are read, and that each other one is refused by name in one line."""

from typing import Any

import pytest

from gpu_worker.engine import ModelError
from gpu_worker.quantised_config import formats_of
from tests.gpu_worker.quantise import AWQ, GPTQ, RECIPES, compressed

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
PACKED = compressed("pack-quantized")


@pytest.mark.parametrize("name", RECIPES)
def test_formats(name: str) -> None:
    (found,) = formats_of({"quantization_config": RECIPES[name].config})
    prefix = {"fp8": "bytes", "int8": "bytes", "gptq-v2": "gptq_v2"}
    assert found.name == prefix.get(name, prefix.get(name.split("-")[0], name.split("-")[0]))


def test_what_is_not_quantised() -> None:
    assert formats_of({}) == formats_of({"quantization_config": None}) == ()


def test_other_ways_to_write_it() -> None:
    first = [{"quant_method": "awq", "w_bit": 4}, AWQ | {"version": "GEMM"}]
    second = [GPTQ | {"checkpoint_format": "gptq"}, GPTQ | {"format": "gptq"}]
    assert {formats_of({"quantization_config": c})[0].name for c in first} == {"awq"}
    assert {formats_of({"quantization_config": c})[0].name for c in second} == {"gptq"}
    assert formats_of({"compression_config": PACKED})[0].name == "packed"
    assert formats_of({"quantization_config": FP8 | {"quant_method": "fbgemm_fp8"}})


def test_groups_of_different_layouts() -> None:
    packed = PACKED["config_groups"]["group_0"] | {"format": "pack-quantized"}
    floats = compressed("", type="float", num_bits=8, strategy="channel")
    floats = floats["config_groups"]["group_0"] | {"format": "float-quantized"}
    mixed = PACKED | {"format": "mixed-precision", "config_groups": {"a": packed, "b": floats}}
    found = formats_of({"quantization_config": mixed})
    assert sorted(format_.name for format_ in found) == ["bytes", "packed"]


REFUSED: list[Any] = [
    pytest.param({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", id="bnb"),
    pytest.param({"quant_method": "hqq"}, "hqq", id="hqq"),
    pytest.param({"quant_method": "mxfp4"}, "mxfp4", id="mxfp4"),
    pytest.param({"quant_method": "of-tomorrow"}, "of-tomorrow", id="unknown"),
    pytest.param({"bits": 4}, "none", id="no-method"),
    pytest.param(AWQ | {"version": "gemv"}, "awq of the layout gemv", id="gemv"),
    pytest.param(AWQ | {"version": "marlin"}, "awq of the layout marlin", id="awq-marlin"),
    pytest.param(AWQ | {"bits": 3}, "awq of 3 bits", id="awq-3"),
    pytest.param(GPTQ | {"checkpoint_format": "marlin"}, "layout marlin", id="gptq-marlin"),
    pytest.param(GPTQ | {"is_marlin_format": True}, "layout marlin", id="gptq-is-marlin"),
    pytest.param(GPTQ | {"bits": 2}, "gptq of 2 bits", id="gptq-2"),
    pytest.param(FP8 | {"weight_block_size": [128, 128]}, "blocks of 128x128", id="fp8-blocks"),
    pytest.param(compressed("marlin-24"), "layout marlin-24", id="marlin-24"),
    pytest.param(
        compressed("nvfp4-pack-quantized", type="float"), "nvfp4-pack-quantized", id="nvfp4"
    ),
    pytest.param(compressed("pack-quantized", num_bits=3), "int 3", id="packed-3"),
    pytest.param(compressed("float-quantized", type="float"), "float 4", id="fp4"),
    pytest.param(
        compressed("float-quantized", type="float", num_bits=8, strategy="block"),
        "strategy block",
        id="blocks",
    ),
    pytest.param(
        PACKED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24", id="sparse"
    ),
    pytest.param(PACKED | {"transform_config": {"R1": {}}}, "transforms", id="transforms"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED)
def test_what_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=f"{message}.*supported: awq") as refused:
        formats_of({"quantization_config": config})
    assert "\n" not in str(refused.value)


def test_no_sparsity_is_no_sparsity() -> None:
    assert formats_of({"quantization_config": PACKED | {"sparsity_config": {"format": "dense"}}})
