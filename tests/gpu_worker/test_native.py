"""The native kernels against the references, over odd shapes and poisoned memory."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.attention import attention_reference
from gpu_worker.kernels.rms_norm import rms_norm_reference
from gpu_worker.kernels.rotary_kv_write import rotary_kv_write_reference
from gpu_worker.kernels.silu_mul import silu_mul_reference
from gpu_worker.native import build as build_module
from gpu_worker.native.build import NativeUnavailableError, build
from gpu_worker.ops import Ops
from tests.gpu_worker.choices import COMPILED, compiled
from tests.gpu_worker.kernel_cases import Shape, make_step

pytestmark = pytest.mark.timeout(600)  # compiles, maybe on a machine that is busy

DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.bfloat16, id="bf16"),
]
LENGTHS = [1, 15, 16, 17, 63, 64, 65, 1000]
DECODE = [(1, length) for length in LENGTHS]
MIXED = [(1, 40), (300, 411), (1, 1), (7, 7), (2, 65), (1, 300)]


@pytest.fixture(scope="module", params=COMPILED)
def ops(request: pytest.FixtureRequest, kernels: Path) -> Ops:
    return compiled(request.param, kernels)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Within rounding of the type: one unit in the last place or so for bf16."""
    tolerance = 2e-5 if actual.dtype == torch.float32 else 1e-2
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("sequences", [DECODE, MIXED, [(1, 33)] * 17, [(16, 16)]])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(9, 3, 64, 16),
        Shape(10, 5, 32, 16),
        Shape(4, 4, 128, 8),
        Shape(8, 1, 16, 32),
        Shape(20, 1, 80, 40),
    ],
    ids=str,
)
def test_attention(
    ops: Ops,
    shape: Shape,
    sequences: list[tuple[int, int]],
    window: int,
    dtype: torch.dtype,
) -> None:
    step = make_step(sequences, shape, dtype)
    scale = shape.head_size**-0.5
    expected = attention_reference(*step.tensors, scale, window)
    assert_close(ops.attention(*step.tensors, scale, window), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 20, 75])
@pytest.mark.parametrize("block_size", [16, 40])
def test_attention_of_a_row_is_the_same_in_any_chunk(
    ops: Ops, block_size: int, window: int, dtype: torch.dtype
) -> None:
    step = make_step([(100, 150)], Shape(9, 3, 64, block_size), dtype)
    whole = ops.attention(*step.tensors, 0.125, window)
    for rows in (1, 2, 5, 33):
        part = ops.attention(
            step.q[-rows:].contiguous(),
            step.k_cache,
            step.v_cache,
            step.block_tables,
            torch.tensor([0, rows], dtype=torch.int32),
            step.lengths,
            0.125,
            window,
        )
        assert torch.equal(part, whole[-rows:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 20, 75])
def test_attention_of_a_row_is_the_same_in_any_company(
    ops: Ops, window: int, dtype: torch.dtype
) -> None:
    step = make_step([(1, 100)] * 3 + MIXED + DECODE, Shape(10, 5, 32, 16), dtype)
    together = ops.attention(*step.tensors, 0.125, window)
    for sequence, (start, stop) in enumerate(pairwise(step.cu_seqlens.tolist())):
        alone = ops.attention(
            step.q[start:stop].contiguous(),
            step.k_cache,
            step.v_cache,
            step.block_tables[sequence : sequence + 1].contiguous(),
            torch.tensor([0, stop - start], dtype=torch.int32),
            step.lengths[sequence : sequence + 1].contiguous(),
            0.125,
            window,
        )
        assert torch.equal(alone, together[start:stop])


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_before_a_window_are_never_read(ops: Ops, dtype: torch.dtype) -> None:
    """They may be somebody else's by now, or nobody's."""
    step = make_step([(1, 200), (5, 311), *DECODE], Shape(10, 5, 32, 16), dtype)
    expected = ops.attention(*step.tensors, 0.125, 20)
    for s, length in enumerate(step.lengths.tolist()):
        rows = int(step.cu_seqlens[s + 1] - step.cu_seqlens[s])
        step.block_tables[s, : max(0, length - rows - 19) // 16] = -(1 << 30)
    assert torch.equal(ops.attention(*step.tensors, 0.125, 20), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (17, 576), (300, 640), (5, 24)])
def test_rms_norm(ops: Ops, rows: int, width: int, has_residual: bool, dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, rows, width).to(dtype)
    weight = torch.randn(width).to(dtype)
    before = x.clone(), residual.clone()
    given = residual if has_residual else None
    normed, total = ops.rms_norm(x, weight, 1e-5, given)
    expected_normed, expected_total = rms_norm_reference(x, weight, 1e-5, given)
    assert_close(normed, expected_normed)
    assert torch.equal(total, expected_total)
    assert torch.equal(torch.stack([x, residual]), torch.stack(before))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(
    "shape", [Shape(9, 3, 64, 16), Shape(4, 4, 128, 8), Shape(8, 1, 32, 5), Shape(2, 1, 16, 4)]
)
@pytest.mark.parametrize("rows", [1, 50])
def test_rotary_kv_write(
    ops: Ops, rows: int, shape: Shape, has_norms: bool, dtype: torch.dtype
) -> None:
    d, num_blocks = shape.head_size, 30
    qkv = torch.randn(rows, (shape.heads + 2 * shape.groups) * d).to(dtype)
    cos_sin = torch.randn(100, d)
    positions = torch.randint(0, 100, (rows,), dtype=torch.int32)
    slots = torch.randperm(num_blocks * shape.block_size)[:rows]
    slots[rows // 2] = -1
    norms = torch.randn(2, d).to(dtype) if has_norms else (None, None)
    caches = [
        torch.full((2, num_blocks, shape.groups, shape.block_size, d), torch.nan, dtype=dtype)
        for _ in range(2)
    ]
    args = (qkv, cos_sin, positions, *norms, 1e-6)
    expected = rotary_kv_write_reference(*args, *caches[0], slots)
    assert_close(ops.rotary_kv_write(*args, *caches[1], slots), expected)
    assert torch.equal(caches[1].isnan(), caches[0].isnan())
    assert_close(caches[1].nan_to_num(), caches[0].nan_to_num())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (17, 1536), (300, 48), (5, 24)])
def test_silu_mul(ops: Ops, rows: int, width: int, dtype: torch.dtype) -> None:
    gate_up = torch.randn(rows, 2 * width).to(dtype) * 20
    gate_up[0, :2] = torch.tensor([200.0, -200.0])
    assert_close(ops.silu_mul(gate_up), silu_mul_reference(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("in_width", "out_width"), [(576, 960), (48, 40), (32, 7), (24, 32)])
def test_linear(
    ops: Ops, in_width: int, out_width: int, has_bias: bool, dtype: torch.dtype
) -> None:
    weight = (torch.randn(out_width, in_width) / in_width**0.5).to(dtype)
    bias = torch.randn(out_width).to(dtype) if has_bias else None
    linear = ops.pack(weight, bias)
    for rows in (1, 3, 4, 13, 16, 17, 32, 33, 100):
        x = torch.randn(rows, in_width).to(dtype)
        wide = torch.nn.functional.linear(
            x.float(), weight.float(), None if bias is None else bias.float()
        )
        assert_close(linear(x), wide.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_of_a_row_is_the_same_in_any_batch(ops: Ops, dtype: torch.dtype) -> None:
    linear = ops.pack(torch.randn(200, 576).to(dtype), None)
    x = torch.randn(77, 576).to(dtype)
    whole = linear(x)
    for start, stop in [(0, 1), (5, 8), (0, 16), (60, 77), (30, 70)]:
        assert torch.equal(linear(x[start:stop].contiguous()), whole[start:stop])


def test_other_types_go_to_the_references(ops: Ops) -> None:
    x = torch.randn(3, 64).half()
    assert torch.equal(ops.silu_mul(x), silu_mul_reference(x))
    weight = torch.randn(16, 64).half()
    assert torch.equal(ops.pack(weight, None)(x), torch.nn.functional.linear(x, weight))


def test_many_processes_build_at_once(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from gpu_worker.native import build; import sys;"
        "build.FLAGS += ('-O1',);"  # quicker than what is served with
        "print(build.build(Path(sys.argv[1])))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    paths = {process.communicate(timeout=100)[0].strip() for process in running}
    assert len(paths) == 1
    assert [str(path) for path in tmp_path.glob("*.so")] == list(paths)
    assert not list(tmp_path.glob("*.partial"))


def test_a_compiler_that_fails_is_passed_over(kernels: Path) -> None:
    with_it = build(kernels / "native", compiler="false")
    assert with_it == build(kernels / "native")


def test_without_a_compiler_the_reason_is_named(tmp_path: Path) -> None:
    with (
        patch.object(build_module, "compilers", lambda *_: iter([("false",), ("/no/such/cc",)])),
        pytest.raises(NativeUnavailableError, match=r"false: does not run; /no/such/cc: .*No such"),
    ):
        build(tmp_path)
