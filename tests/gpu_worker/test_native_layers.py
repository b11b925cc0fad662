"""All layers in one call of the C code, against the same kernels one by one."""

from pathlib import Path

import pytest
import torch

from gpu_worker.kv_cache import KVCache
from gpu_worker.llama import Inputs, Layer, Llama
from gpu_worker.model_config import ModelConfig
from gpu_worker.native.layers import JoinedLayers
from gpu_worker.ops import Linear, Ops, torch_ops
from tests.gpu_worker.choices import COMPILED, compiled
from tests.gpu_worker.kernel_cases import Shape, make_step

pytestmark = pytest.mark.timeout(600)  # compiles, maybe on a machine that is busy

WIDTH, FFN_WIDTH, HEADS, GROUPS, VOCAB = 64, 96, 4, 2, 50
WINDOWS = (0, 20, 0)


@pytest.fixture(scope="module", params=["none", "int8"])
def quantization(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=COMPILED)
def ops(request: pytest.FixtureRequest, quantization: str, kernels: Path) -> Ops:
    return compiled(request.param, kernels, quantization)


def make_model(ops: Ops, dtype: torch.dtype, *, head_size: int = 32, has_extras: bool) -> Llama:
    config = ModelConfig(
        num_layers=len(WINDOWS),
        width=WIDTH,
        ffn_width=FFN_WIDTH,
        num_heads=HEADS,
        num_groups=GROUPS,
        head_size=head_size,
        vocab_size=VOCAB,
        norm_eps=1e-5,
        frequencies=(1.0,) * (head_size // 2),
        windows=WINDOWS,
        tied=False,
        qkv_bias=has_extras,
        out_bias=has_extras,
        ffn_bias=has_extras,
        qk_norm=has_extras,
    )

    def random(*shape: int) -> torch.Tensor:
        drawn: torch.Tensor = torch.randn(*shape) / shape[-1] ** 0.5
        return drawn.to(dtype)

    def linear(in_width: int, out_width: int) -> Linear:
        return ops.pack(random(out_width, in_width), random(out_width) if has_extras else None)

    def layer(window: int) -> Layer:
        return Layer(
            input_norm=1 + random(WIDTH),
            qkv=linear(WIDTH, (HEADS + 2 * GROUPS) * head_size),
            q_norm=1 + random(head_size) if has_extras else None,
            k_norm=1 + random(head_size) if has_extras else None,
            out=linear(HEADS * head_size, WIDTH),
            ffn_norm=1 + random(WIDTH),
            gate_up=linear(WIDTH, 2 * FFN_WIDTH),
            down=linear(FFN_WIDTH, WIDTH),
            window=window,
        )

    layers = tuple(layer(window) for window in WINDOWS)
    cos_sin = torch.randn(100, head_size)
    head = linear(WIDTH, VOCAB)
    return Llama(config, ops, random(VOCAB, WIDTH), layers, 1 + random(WIDTH), head, cos_sin)


def make_inputs(dtype: torch.dtype) -> tuple[Inputs, KVCache]:
    """A decoding row, a chunk behind cached tokens, and a whole prompt."""
    sequences = [(1, 40), (30, 50), (7, 7)]
    step = make_step(sequences, Shape(HEADS, GROUPS, 32, 16), dtype)
    positions = torch.cat([torch.arange(stop - count, stop) for count, stop in sequences])
    counts = torch.tensor([count for count, _ in sequences])
    tables = step.block_tables.repeat_interleave(counts, 0)
    blocks = tables.gather(1, positions[:, None] // 16)[:, 0]
    inputs = Inputs(
        tokens=torch.randint(0, VOCAB, (len(positions),), dtype=torch.int32),
        positions=positions.int(),
        slot_mapping=blocks * 16 + positions % 16,
        block_tables=step.block_tables,
        cu_seqlens=step.cu_seqlens,
        lengths=step.lengths,
        last=step.cu_seqlens[1:].long() - 1,
    )
    caches = [torch.stack([cache] * len(WINDOWS)) for cache in (step.k_cache, step.v_cache)]
    return inputs, KVCache(*caches)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("has_extras", [False, True])
def test_layers_in_one_call(ops: Ops, has_extras: bool, dtype: torch.dtype) -> None:
    model = make_model(ops, dtype, has_extras=has_extras)
    inputs, cache = make_inputs(dtype)
    other = KVCache(cache.k.clone(), cache.v.clone())
    joined = ops.join(model)
    assert isinstance(joined, JoinedLayers)
    results = joined(inputs, cache)
    with torch.inference_mode():
        expected = model.one_by_one(inputs, other)
    for result, right in zip(results, expected, strict=True):
        assert right.isfinite().all()
        assert torch.equal(result, right)
    for written, right in ((cache.k, other.k), (cache.v, other.v)):
        assert torch.equal(written.nan_to_num(1e3), right.nan_to_num(1e3))


def test_what_the_c_code_does_not_take_stays_one_by_one(ops: Ops) -> None:
    assert ops.join(make_model(ops, torch.float32, head_size=16, has_extras=False)) is None
    assert ops.join(make_model(ops, torch.float16, has_extras=False)) is None
    assert ops.join(make_model(torch_ops(), torch.float32, has_extras=False)) is None
