"""Norm, head and conversion in one call of the C code, against the same kernels one by one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpu_worker.native.layers import KERNELS, JoinedLayers, JoinedLogits
from gpu_worker.ops import Ops, torch_ops
from tests.gpu_worker.choices import COMPILED, compiled
from tests.gpu_worker.test_native_layers import VOCAB, WIDTH, make_inputs, make_model

TYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module", params=["none", "int8"])
def quantization(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=COMPILED)
def ops(request: pytest.FixtureRequest, quantization: str, kernels: Path) -> Ops:
    return compiled(request.param, kernels, quantization)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("has_extras", [False, True])
@pytest.mark.parametrize("last", [[0], [5, 2, 5, 0], list(range(19))])
def test_logits_in_one_call(
    ops: Ops, has_extras: bool, dtype: torch.dtype, last: list[int]
) -> None:
    model = make_model(ops, dtype, has_extras=has_extras)
    x, residual = torch.randn(2, 19, WIDTH).to(dtype)
    joined = ops.join_logits(model)
    assert isinstance(joined, JoinedLogits)
    before = x.clone(), residual.clone()
    logits = joined(x, residual, torch.tensor(last))
    assert logits.dtype == torch.float32
    assert logits.shape == (len(last), VOCAB)
    with torch.inference_mode():
        assert torch.equal(logits, model.plain_logits(x, residual, torch.tensor(last)))
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])
    assert torch.equal(model.logits(x, residual, torch.tensor(last)), logits)


def test_no_logits_of_no_rows(ops: Ops) -> None:
    model = make_model(ops, torch.bfloat16, has_extras=False)
    x = torch.randn(4, WIDTH).bfloat16()
    assert model.logits(x, x.clone(), torch.zeros(0, dtype=torch.int64)).shape == (0, VOCAB)


@pytest.mark.parametrize("row", [-1, 4])
def test_refuses_a_row_that_is_not_there(ops: Ops, row: int) -> None:
    model = make_model(ops, torch.bfloat16, has_extras=False)
    x = torch.randn(4, WIDTH).bfloat16()
    with pytest.raises(AssertionError, match="a row that is not there"):
        model.logits(x, x.clone(), torch.tensor([0, row]))


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_refuses_a_token_beyond_the_vocabulary(ops: Ops, token: int) -> None:
    model = make_model(ops, torch.bfloat16, has_extras=False)
    inputs, cache = make_inputs(torch.bfloat16)
    tokens = inputs.tokens.clone()
    tokens[3] = token
    with pytest.raises(AssertionError, match="beyond the vocabulary"):
        model.hidden(replace(inputs, tokens=tokens), cache)


def test_a_head_that_the_c_code_does_not_take_stays_plain(ops: Ops) -> None:
    assert ops.join_logits(make_model(ops, torch.float16, has_extras=False)) is None
    model = make_model(ops, torch.bfloat16, has_extras=False)
    assert ops.join_logits(replace(model, head=lambda x: x)) is None
    assert ops.join_logits(make_model(torch_ops(), torch.float32, has_extras=False)) is None


def test_takes_the_time_of_each_kernel(ops: Ops) -> None:
    model = make_model(ops, torch.bfloat16, has_extras=False)
    inputs, cache = make_inputs(torch.bfloat16)
    layers = model.hidden
    assert isinstance(layers, JoinedLayers)
    layers.measure()
    layers(inputs, cache)
    taken = layers.milliseconds()
    assert set(taken) == set(KERNELS)
    assert all(0 < each < 1e4 for each in taken.values())
    assert set(layers.milliseconds().values()) == {0.0}
