"""Linear layers in eight bits: what rounding costs, and that company costs nothing."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.int8_linear import GROUP, rounded
from gpu_worker.native.linear import Int8Linear
from gpu_worker.ops import Ops, torch_ops
from gpu_worker.quantised import to_bytes
from tests.gpu_worker.choices import COMPILED, compiled
from tests.gpu_worker.test_native import DTYPES, assert_close

pytestmark = pytest.mark.timeout(600)  # compiles, maybe on a machine that is busy


@pytest.fixture(scope="module", params=COMPILED)
def ops(request: pytest.FixtureRequest, kernels: Path) -> Ops:
    return compiled(request.param, kernels, "int8")


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("rows", "in_width", "out_width"),
    [(1, 32, 16), (2, 64, 1), (3, 96, 50), (5, 32, 33), (17, 576, 100), (64, 128, 160)],
)
def test_matches_the_reference(
    ops: Ops, rows: int, in_width: int, out_width: int, has_bias: bool, dtype: torch.dtype
) -> None:
    weight = random(out_width, in_width, dtype=dtype) / in_width**0.5
    bias = random(out_width, dtype=dtype) if has_bias else None
    x = random(rows, in_width, dtype=dtype)
    assert isinstance(ops.pack(weight, bias), Int8Linear)
    assert_close(ops.pack(weight, bias)(x), torch_ops("int8").pack(weight, bias)(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_in_any_company(ops: Ops, dtype: torch.dtype) -> None:
    linear = ops.pack(random(100, 576, dtype=dtype), None)
    x = random(37, 576, dtype=dtype)
    together = linear(x)
    for rows in (1, 2, 3, 4, 7, 8, 16, 33):
        assert torch.equal(linear(x[-rows:].contiguous()), together[-rows:])


def test_rounding_loses_little(ops: Ops) -> None:
    weight, x = random(300, 576), random(20, 576)
    exact = x @ weight.T
    assert (ops.pack(weight, None)(x) - exact).norm() < 0.012 * exact.norm()


def test_a_large_input_costs_its_own_group_alone() -> None:
    x = random(3, 3 * GROUP)
    usual = rounded(x)
    x[:, 0] = 1e6
    spoilt = rounded(x)
    assert torch.equal(spoilt[:, GROUP:], usual[:, GROUP:])
    assert not spoilt[:, 1:GROUP].any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 17, 95])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_shows_in_its_row_alone(
    ops: Ops, dtype: torch.dtype, place: int, bad: float
) -> None:
    linear = ops.pack(random(40, 96, dtype=dtype), None)
    x = random(11, 96, dtype=dtype)
    usual = linear(x)
    x[4, place] = bad
    spoilt = linear(x)
    assert not spoilt[4].isfinite().any()
    others = torch.arange(11) != 4
    assert torch.equal(spoilt[others], usual[others])


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30])
def test_small_and_large_numbers(ops: Ops, value: float) -> None:
    linear = ops.pack(torch.ones(20, 64) / 64, None)
    torch.testing.assert_close(linear(torch.full((3, 64), value)), torch.full((3, 20), value))


def test_inputs_that_make_no_whole_groups_stay_in_their_type(ops: Ops) -> None:
    weight, x = random(20, 48), random(3, 48)
    for pack in (ops.pack, torch_ops("int8").pack):
        assert_close(pack(weight, None)(x), x @ weight.T)


def test_weights_are_rounded_by_output() -> None:
    weight = random(2000, 64) * torch.logspace(-3, 3, 2000)[:, None]
    weight[7] = 0
    bytes_ = to_bytes(weight)
    off = (bytes_.widened(torch.float32) - weight).abs().amax(1)
    assert (off <= bytes_.scale * 0.5001).all()
    assert set(bytes_.values.abs().amax(1).tolist()) == {0, 127}
