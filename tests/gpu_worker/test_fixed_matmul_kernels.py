"""Linear layers in one order of sums, interpreted: against the reference, and bit by bit."""

from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels import fixed_matmul_triton
from gpu_worker.kernels.fixed_matmul import fixed_matmul_reference
from gpu_worker.kernels.fixed_matmul_triton import Tile, fixed_matmul, tile_of
from tests.gpu_worker.poison import HUGE, far_apart, fenced

pytestmark = pytest.mark.usefixtures("poisoned")

DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.bfloat16, id="bf16"),
    pytest.param(torch.float16, id="fp16"),
]


def layer(num_out: int, num_in: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    weight = torch.randn(num_out, num_in) * num_in**-0.5
    return fenced(weight.to(dtype)), fenced(torch.randn(num_out).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_rows", "num_out", "num_in"),
    [
        pytest.param(0, 5, 16, id="none"),
        pytest.param(1, 33, 300, id="one"),
        pytest.param(17, 64, 128, id="17"),
        pytest.param(65, 130, 100, id="65"),
        pytest.param(300, 7, 257, id="300"),
    ],
)
def test_fixed_matmul(num_rows: int, num_out: int, num_in: int, dtype: torch.dtype) -> None:
    weight, bias = layer(num_out, num_in, dtype)
    x = fenced(torch.randn(num_rows, num_in).to(dtype))
    within = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    for given in (None, bias):
        expected = fixed_matmul_reference(x, weight, given)
        actual = fixed_matmul(x, weight, given)
        assert actual.dtype == dtype
        torch.testing.assert_close(actual, expected, atol=within, rtol=within)


@pytest.mark.parametrize("width", [70, 128 * 132], ids=["narrow", "wide"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_bits_in_every_batch(
    dtype: torch.dtype, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, among 300 and at another place of theirs; in the tiles of a layer that wide."""
    tile = tile_of(width, dtype, is_hip=False)
    monkeypatch.setattr(fixed_matmul_triton, "tile_of", lambda *_: tile)
    weight, bias = layer(70, 200, dtype)
    x = torch.randn(300, 200).to(dtype)
    together = fixed_matmul(x, weight, bias)
    turned = fixed_matmul(x.roll(29, 0), weight, bias)
    assert torch.equal(turned, together.roll(29, 0))
    for row in (0, 15, 64, 299):
        assert torch.equal(fixed_matmul(x[row : row + 1], weight, bias)[0], together[row])


def test_tiles_follow_from_the_layer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def tile(*layer: Any) -> Tile:
        asked.append(layer)
        return tile_of(*layer)

    monkeypatch.setattr(fixed_matmul_triton, "tile_of", tile)
    for num_rows in (1, 65):
        fixed_matmul(torch.randn(num_rows, 16), torch.randn(5, 16))
    assert asked == [(5, torch.float32, False)] * 2
    assert tile_of(128 * 132, torch.bfloat16, False) != tile_of(4096, torch.bfloat16, False)


def test_every_tile_has_one_program() -> None:
    """More tiles of rows than take turns at one tile of weights, and the last turns are fewer."""
    x, weight = torch.randn(33 * 64 + 1, 16), torch.randn(65, 16)
    torch.testing.assert_close(fixed_matmul(x, weight), fixed_matmul_reference(x, weight))


def test_rows_may_be_further_apart_than_32_bits_count() -> None:
    x, weight = torch.randn(2, 64), torch.randn(5, 64)
    assert torch.equal(fixed_matmul(far_apart(x, HUGE), weight), fixed_matmul(x, weight))
