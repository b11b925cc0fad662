"""Tensors of quantised formats, made from their definitions, to the weights that they stand for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_worker.engine import ModelError
from gpu_worker.quantised import ByteWeight, GroupedWeight
from gpu_worker.quantised_config import formats_of
from gpu_worker.quantised_formats import AWQ, BYTES, GPTQ, PACKED, Format
from tests.gpu_worker.quantise import RECIPES, fp8, gptq, in_order, levels_of, packed

SHAPE = (40, 96)


def format_of(name: str, tensors: dict[str, Tensor]) -> Format:
    formats = formats_of({"quantization_config": RECIPES[name].config})
    (found,) = [format_ for format_ in formats if format_.levels in tensors]
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_a_weight_is_what_its_tensors_stand_for(name: str) -> None:
    weight = torch.randn(SHAPE)
    tensors, meant = RECIPES[name].make(weight, "layers.0.q_proj")
    assert 0 < (meant - weight).norm() / weight.norm() < 0.2
    format_ = format_of(name, tensors)
    converted = format_.convert(tensors, *SHAPE)
    torch.testing.assert_close(converted.widened(torch.float32), meant, rtol=1e-6, atol=1e-7)
    read = {part: tuple(tensors[part].shape) for part in format_.tensors() if part in tensors}
    assert all(tensor.is_contiguous() for tensor in converted.tensors())
    used = sum(tensor.nbytes for tensor in converted.tensors() if tensor.dtype != torch.int64)
    assert used < weight.nbytes / 2
    least = format_.num_bytes(read, *SHAPE)
    assert least == used if name != "int8-asymmetric" else least < used


def test_eight_bits_of_one_group_stay_bytes() -> None:
    weight = torch.randn(SHAPE)
    for name, is_bytes in [("gptq-8-channel", True), ("packed-8", True), ("gptq-8", False)]:
        tensors, _ = RECIPES[name].make(weight, "layers.0.q_proj")
        converted = format_of(name, tensors).convert(tensors, *SHAPE)
        assert isinstance(converted, ByteWeight if is_bytes else GroupedWeight)


def test_zeros_of_the_first_version_that_borrowed() -> None:
    weight = torch.rand(SHAPE)  # all above 0, so that levels begin there
    tensors, meant = gptq(weight, "", symmetric=False)
    assert levels_of(weight, in_order(96), 4, symmetric=False)[2].max() == 0
    converted = GPTQ.convert(tensors, *SHAPE)
    torch.testing.assert_close(converted.widened(torch.float32), meant)


def test_large_groups_are_several_small_ones() -> None:
    weight = torch.randn(8, 768)
    for group, ours in [(768, 128), (384, 128), (192, 64), (32, 32)]:
        tensors, meant = gptq(weight, "", group=group)
        converted = GPTQ.convert(tensors, 8, 768)
        assert isinstance(converted, GroupedWeight)
        assert converted.packed.shape == (768 // ours, 8, ours // 2)
        torch.testing.assert_close(converted.widened(torch.float32), meant)


def test_g_idx_that_says_nothing() -> None:
    tensors, meant = packed(torch.randn(SHAPE), "")
    tensors["weight_g_idx"] = torch.full((96,), -1, dtype=torch.int32)  # not set
    converted = PACKED.convert(tensors, *SHAPE)
    torch.testing.assert_close(converted.widened(torch.float32), meant)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_for_a_tensor(shape: tuple[int, ...]) -> None:
    tensors, meant = fp8(torch.randn(SHAPE), "")
    tensors["weight_scale"] = tensors["weight_scale"].reshape(shape)
    converted = BYTES.convert(tensors, *SHAPE)
    assert converted.scale.shape == (40,)
    torch.testing.assert_close(converted.widened(torch.float32), meant)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_for_a_tensor_of_integers(shape: tuple[int, ...]) -> None:
    values = torch.arange(-48, 48, dtype=torch.int8).expand(SHAPE)
    scale = torch.tensor(0.5).reshape(shape)
    converted = BYTES.convert({"weight": values, "weight_scale": scale}, *SHAPE)
    assert isinstance(converted, ByteWeight)
    assert converted.scale.is_contiguous()  # as the kernels want it
    torch.testing.assert_close(converted.widened(torch.float32), values * 0.5)


def uneven(num_in: int) -> Tensor:
    return torch.cat((torch.zeros(num_in - 1), torch.ones(1))).int()


SIXTEENS = {"scales": torch.zeros(6, 40), "qzeros": torch.zeros(6, 5).int(), "g_idx": None}
BROKEN: list[Any] = [
    pytest.param(AWQ, {"qweight": torch.zeros(96, 4).int()}, r"\[32, 96\].*\[40, 96\]", id="shape"),
    pytest.param(AWQ, {"qzeros": None}, "lacks the tensor qzeros", id="no-zeros"),
    pytest.param(GPTQ, {"qweight": torch.zeros(9, 40).int()}, "3 bits", id="3-bits"),
    pytest.param(GPTQ, {"g_idx": uneven(96)}, "different sizes", id="uneven-groups"),
    pytest.param(GPTQ, SIXTEENS, "multiple of 32", id="groups-of-16"),
    pytest.param(PACKED, {"weight_shape": torch.tensor([40, 95])}, r"\[40, 95\]", id="unlike"),
    pytest.param(PACKED, {"weight_scale": torch.zeros(5, 3)}, r"\[3, 5\]|\[5, 3\]", id="blocks"),
    pytest.param(BYTES, {"weight_scale": torch.zeros(40, 2)}, "2 scales", id="fp8-groups"),
    pytest.param(BYTES, {"weight_scale": torch.zeros(5, 12)}, r"\[5, 12\]", id="fp8-blocks"),
    pytest.param(
        BYTES, {"weight": torch.zeros(SHAPE).to(torch.float8_e5m2)}, "float8_e5m2", id="e5m2"
    ),
    pytest.param(
        BYTES, {"weight": torch.full(SHAPE, np.nan).to(torch.float8_e4m3fn)}, "number", id="nan"
    ),
]


@pytest.mark.parametrize(("format_", "changes", "message"), BROKEN)
def test_what_is_not_as_the_format_says(
    format_: Format, changes: dict[str, Tensor | None], message: str
) -> None:
    recipe = {"bytes": "fp8"}.get(format_.name, format_.name)
    tensors = RECIPES[recipe].make(torch.randn(SHAPE), "")[0] | changes
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with pytest.raises(ModelError, match=message):
        format_.convert(present, *SHAPE)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "one axis": torch.Tensor.flatten,
    "one axis more": lambda x: x[None],
    "a number": lambda x: x.flatten()[0],
    "rows of nothing": lambda x: x[..., :0],
    "nothing": lambda x: x[:0],
    "half": lambda x: x[: len(x) // 2],
    "double": lambda x: torch.cat((x, x)),
    "turned": lambda x: x.mT.clone(memory_format=torch.contiguous_format),
    "long": torch.Tensor.long,
    "tiny floats": lambda x: x.to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", RECIPES)
def test_a_tensor_that_is_not_what_the_others_are_to(name: str, change: str) -> None:
    """It is refused, or means something; nothing else is raised."""
    whole = RECIPES[name].make(torch.randn(SHAPE), "")[0]
    num_refused = 0
    for suffix, tensor in whole.items():
        if tensor.dim() < (2 if change in {"half", "double", "turned"} else 1):
            continue
        changed = {**whole, suffix: CHANGES[change](tensor)}
        for format_ in formats_of({"quantization_config": RECIPES[name].config}):
            known = {suffix: x for suffix, x in changed.items() if suffix in format_.tensors()}
            try:
                format_.check({suffix: tuple(x.shape) for suffix, x in known.items()})
                assert format_.convert(known, *SHAPE).widened(torch.float32).shape == SHAPE
            except ModelError:
                num_refused += 1
    assert num_refused or change in {"long", "tiny floats"}
