"""Linear layers for few rows, interpreted, against references."""

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.int4_matmul import int4_matmul_reference, pack
from gpu_worker.kernels.int4_matmul_triton import int4_matmul
from gpu_worker.kernels.small_matmul import is_worth, small_matmul_reference
from gpu_worker.kernels.small_matmul_triton import (
    KINDS,
    _small_matmul_kernel,
    parts_of,
    rows_of,
    small_matmul,
)
from tests.gpu_worker.poison import HUGE, assert_close, far_apart, fenced, untouched

pytestmark = pytest.mark.usefixtures("poisoned")

DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.bfloat16, id="bf16"),
    pytest.param(torch.float16, id="fp16"),
]
SHAPES = [  # rows, outputs, inputs
    pytest.param(1, 40, 4100, id="parts"),
    pytest.param(17, 33, 300, id="odd"),
    pytest.param(64, 64, 256, id="64-rows"),
    pytest.param(130, 33, 256, id="several-tiles"),
]


def weights_of(kind: str, num_out: int, num_in: int) -> tuple[Tensor, Tensor | None]:
    if kind == "int8":
        weight = torch.randint(-128, 128, (num_out, num_in), dtype=torch.int8)
    elif kind == "fp8":
        weight = torch.randn(num_out, num_in).to(torch.float8_e4m3fn)
        weight[0, :256] = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
        weight = weight.float().nan_to_num(-3.0).to(torch.float8_e4m3fn)
    else:
        return fenced(torch.randn(num_out, num_in).to(getattr(torch, kind))), None
    fence = fenced(weight.view(torch.uint8)).view(weight.dtype)
    return fence, fenced(torch.rand(num_out) * 0.1)


def close(actual: Tensor, expected: Tensor) -> None:
    """As near as sums of so many terms come in the type of x."""
    size = expected.float().abs().mean().item() + 1
    within = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[actual.dtype] * size
    torch.testing.assert_close(actual, expected, atol=within, rtol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["plain", "int8", "fp8"])
@pytest.mark.parametrize(("rows", "num_out", "num_in"), SHAPES)
def test_small_matmul(rows: int, num_out: int, num_in: int, kind: str, dtype: torch.dtype) -> None:
    kind = str(dtype).removeprefix("torch.") if kind == "plain" else kind
    weight, scale = weights_of(kind, num_out, num_in)
    x, bias = fenced(torch.randn(rows, num_in).to(dtype)), fenced(torch.randn(num_out).to(dtype))
    for given in (None, bias):
        expected = small_matmul_reference(x, weight, scale, given)
        close(small_matmul(x, weight, scale, given), expected)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_small_weights_are_widened_exactly(kind: str) -> None:
    weight, scale = weights_of(kind, 32, 256)
    x = torch.eye(256)[:64].bfloat16()  # picks single weights
    out = small_matmul(x, weight, torch.ones_like(scale))
    assert torch.equal(out.float(), weight.float().T[:64])


def test_a_row_is_the_same_bits_in_every_batch() -> None:
    x, weight = torch.randn(40, 4096).bfloat16(), torch.randn(32, 4096).bfloat16()
    assert parts_of(32, 4096, 32) == 2
    together = small_matmul(x, weight, deterministic=True)
    for row in (0, 15, 16, 39):
        alone = small_matmul(x[row : row + 1], weight, deterministic=True)
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize(
    ("num_out", "num_in", "parts"),
    [(28672, 4096, 1), (4096, 14336, 1), (1024, 14336, 4), (128, 14336, 7), (576, 1536, 1)],
)
def test_layers_with_few_outputs_are_cut_into_parts(num_out: int, num_in: int, parts: int) -> None:
    assert parts_of(num_out, num_in, 32) == parts


def test_a_tile_has_no_more_rows_than_fit() -> None:
    assert [rows_of(n, deterministic=False) for n in (1, 17, 64, 130)] == [16, 32, 64, 64]


def test_where_it_should_be_worth_it() -> None:
    assert is_worth(64, 28672, 4096, torch.int8)
    assert is_worth(8, 4096, 4096, torch.bfloat16)
    assert not is_worth(8, 28672, 4096, torch.bfloat16)
    assert not is_worth(17, 4096, 4096, torch.bfloat16)
    assert not is_worth(65, 28672, 4096, torch.int8)


def test_rows_may_be_further_apart_than_32_bits_count() -> None:
    x, weight = torch.randn(2, 64), torch.randn(5, 64)
    expected = small_matmul(x, weight)
    assert torch.equal(small_matmul(far_apart(x, HUGE), weight), expected)
    levels = torch.randint(0, 16, (5, 64))
    args = (pack(levels, 64), torch.rand(1, 5), torch.full((1, 5), 8.0))
    expected = int4_matmul(x, *args)
    assert torch.equal(int4_matmul(far_apart(x, HUGE), *args), expected)


def test_weights_may_be_more_than_32_bits_count() -> None:
    num_in, parts = 1 << 26, 1 << 18  # of which one is computed
    weight = untouched(33 * num_in, torch.uint8).view(33, num_in)
    assert weight.numel() > 1 << 31
    weight[:, :256] = torch.randint(0, 256, (33, 256))
    x, sums = torch.randn(1, 256), torch.zeros(1, 1, 33)
    sizes = {"I": num_in, "O": 33, "P": parts, "ROWS": 16, "INPUTS": 256, "OUTPUTS": 32}
    args = (x, 256, weight, None, None, sums, 1)
    _small_matmul_kernel[(1, 2, 1)](*args, **sizes, KIND=KINDS[torch.int8], WIDE=True)
    expected = small_matmul_reference(x, weight[:, :256].view(torch.int8), torch.ones(33))
    assert_close(sums[0], expected, within=1e-2)


# --- Four bits --------------------------------------------------------------------------------


def int4_weights(num_out: int, num_in: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """(levels [O, I], scale, zero), scale and zero [J, O]."""
    shape = (num_in // group, num_out)
    levels = torch.randint(0, 16, (num_out, num_in))
    return levels, torch.rand(shape) * 0.1, torch.randint(0, 17, shape).float()


def widened(levels: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """[O, I]"""
    group = levels.shape[1] // len(scale)
    scale, zero = (x.T.repeat_interleave(group, dim=1) for x in (scale, zero))
    return (levels - zero) * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "num_out", "num_in", "group"),
    [
        pytest.param(1, 65, 4096 + 128, 128, id="parts-128"),
        pytest.param(17, 33, 192, 64, id="odd-64"),
        pytest.param(64, 8, 96, 32, id="64-rows-32"),
        pytest.param(130, 33, 64, 32, id="several-tiles"),
    ],
)
def test_int4_matmul(rows: int, num_out: int, num_in: int, group: int, dtype: torch.dtype) -> None:
    levels, scale, zero = int4_weights(num_out, num_in, group)
    args = (fenced(pack(levels, group)), fenced(scale), fenced(zero))
    x, bias = fenced(torch.randn(rows, num_in).to(dtype)), fenced(torch.randn(num_out).to(dtype))
    for given in (None, bias):
        expected = int4_matmul_reference(x, *args, given)
        close(int4_matmul(x, *args, given), expected)
    naive = x.float() @ widened(levels, scale, zero).T
    close(int4_matmul_reference(x, *args).float(), naive.to(dtype).float())
