"""Quantised weights cut, joined, widened, and as layers in Triton, against plain weights."""

import pytest
import torch
from torch import Tensor

from gpu_worker.engine import ModelError
from gpu_worker.kernels.widen_triton import widen_bytes, widen_int4
from gpu_worker.quantised import (
    ByteWeight,
    GroupedWeight,
    QuantisedWeight,
    grouped,
    joined,
)
from gpu_worker.quantised_linear import FEW_ROWS, pack_quantised
from tests.gpu_worker.poison import fenced

pytestmark = pytest.mark.usefixtures("poisoned")

KINDS = ["int8", "fp8", "int4", "int4-ordered", "int8-grouped", "int8-ordered"]
ORDER = torch.randperm(96, generator=torch.Generator().manual_seed(1))


def weight_of(kind: str, num_out: int = 40, num_in: int = 96) -> QuantisedWeight:
    if kind in {"int8", "fp8"}:
        dtype = torch.int8 if kind == "int8" else torch.float8_e4m3fn
        values = (torch.randn(num_out, num_in) * 30).to(dtype)
        return ByteWeight(values, torch.rand(num_out) * 0.01)
    bits, shape = int(kind[3]), (num_in // 32, num_out)
    levels = torch.randint(0, 1 << bits, (num_out, num_in), dtype=torch.uint8)
    zero = torch.randint(0, (1 << bits) + 1, shape)
    order = ORDER if kind.endswith("ordered") else None
    return grouped(levels, torch.rand(shape) / (1 << bits), zero, bits, order)


def test_grouped_is_what_it_says() -> None:
    levels = torch.randint(0, 256, (40, 96), dtype=torch.uint8)
    scale, zero = torch.rand(3, 40), torch.randint(0, 257, (3, 40))
    group = ORDER.argsort() // 32  # of each input: the places of a group follow one another
    expected = (levels - zero.T[:, group].float()) * scale.T[:, group]
    found = grouped(levels, scale, zero, 8, ORDER).widened(torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    levels &= 15
    expected = (levels - zero.T[:, group].float()) * scale.T[:, group]
    found = grouped(levels, scale, zero, 4, ORDER).widened(torch.float32)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_of_a_weight(kind: str) -> None:
    weight = weight_of(kind)
    cut = weight.outputs(7, 29)
    assert all(tensor.is_contiguous() for tensor in cut.tensors())
    assert cut.num_out == 22
    assert torch.equal(cut.widened(torch.float32), weight.widened(torch.float32)[7:29])


@pytest.mark.parametrize("kind", ["int8", "fp8", "int4", "int8-grouped"])
def test_inputs_of_a_weight(kind: str) -> None:
    weight = weight_of(kind)
    cut = weight.inputs(32, 96)
    assert all(tensor.is_contiguous() for tensor in cut.tensors())
    assert torch.equal(cut.widened(torch.float32), weight.widened(torch.float32)[:, 32:96])


def test_inputs_that_cannot_be_cut() -> None:
    with pytest.raises(ModelError, match=r"groups of 32 .* inputs 0 and 48"):
        weight_of("int4").inputs(0, 48)
    with pytest.raises(ModelError, match="desc_act"):
        weight_of("int4-ordered").inputs(0, 32)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_one_layer(kind: str) -> None:
    parts = [weight_of(kind, num_out) for num_out in (5, 40, 3)]
    together = joined(parts)
    assert together is not None
    assert together.num_out == 48
    expected = torch.cat([part.widened(torch.float32) for part in parts])
    assert torch.equal(together.widened(torch.float32), expected)


@pytest.mark.parametrize(
    "kinds", [(left, right) for left in KINDS for right in KINDS if left < right]
)
def test_parts_that_differ(kinds: tuple[str, str]) -> None:
    assert joined([weight_of(kind) for kind in kinds]) is None


def test_parts_in_different_orders() -> None:
    weight = weight_of("int4-ordered")
    assert isinstance(weight, GroupedWeight)
    other = GroupedWeight(weight.packed, weight.scale, weight.zero, ORDER.flip(0))
    assert joined([weight, other]) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_widened_in_triton(kind: str, dtype: torch.dtype) -> None:
    weight = weight_of(kind)
    if isinstance(weight, ByteWeight):
        weight.values.view(torch.uint8).flatten()[:256] = every_byte(kind)
        found = widen_bytes(fenced_bytes(weight.values), fenced(weight.scale), dtype)
    else:
        parts = (fenced(weight.packed), fenced(weight.scale), fenced(weight.zero))
        found = widen_int4(*parts, weight.planes, dtype)
        weight = GroupedWeight(*parts, None, weight.planes)
    # The interpreter cuts off what does not fit into 16 bits.
    within = {"rtol": 1e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 0}
    torch.testing.assert_close(found, weight.widened(dtype), **within)


def every_byte(kind: str) -> Tensor:
    """[256], but for the two of float8 that are no numbers."""
    every = torch.arange(256).to(torch.uint8)
    return every.where((every & 0x7F != 0x7F) | (kind == "int8"), 0)


def fenced_bytes(values: Tensor) -> Tensor:
    return fenced(values.view(torch.uint8)).view(values.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_in_triton(kind: str, rows: int, dtype: torch.dtype) -> None:
    weight, x = weight_of(kind), torch.randn(rows, 96).to(dtype)
    plain = weight.widened(torch.float32)
    for bias in (None, torch.randn(40).to(dtype)):
        found = pack_quantised(weight, bias)(x)
        expected = torch.nn.functional.linear(
            x.float(), plain, None if bias is None else bias.float()
        )
        assert found.dtype == dtype
        within = (1e-5 if dtype == torch.float32 else 2e-2) * expected.abs().max().item()
        torch.testing.assert_close(found.float(), expected, rtol=0, atol=within)
