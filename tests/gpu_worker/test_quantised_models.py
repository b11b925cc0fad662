"""Tiny models in every quantised format against the models that they stand for."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from common.messages import Ending
from gpu_worker.engine import ModelError
from gpu_worker.llama import Layer, Llama
from gpu_worker.ops import Ops, torch_ops
from gpu_worker.parallel import Alone
from gpu_worker.quantised_linear import ByteLinear, GroupedLinear
from gpu_worker.shard import Shard
from gpu_worker.triton_ops import triton_ops
from gpu_worker.weights import load_model, open_weights, weight_bytes
from tests.gpu_worker.driving import Driver, logits_by_chunk, make_request
from tests.gpu_worker.quantise import GPTQ, RECIPES, Recipe, gptq, write
from tests.gpu_worker.tiny import CPU, VOCAB, load, make_engine

# The layers alone in Triton, since the interpreter takes seconds for a step on all its kernels.
LINEAR = replace(torch_ops(), name="linear", pack_quantised=triton_ops().pack_quantised)
PROMPT = torch.randint(0, VOCAB, (140,), generator=torch.Generator().manual_seed(3)).tolist()


def load_with(ops: Ops, path: Path, group: Alone | None = None) -> Llama:
    weights = open_weights(path)
    return load_model(weights, ops, torch.float32, CPU, 192, group=group or Alone())


def logits(model: Llama, size: int = 140) -> Tensor:
    return torch.stack([row for _, row in logits_by_chunk(make_engine(model), PROMPT, size)])


def greedy(model: Llama, num_tokens: int = 4) -> list[list[int]]:
    driver = Driver(make_engine(model, num_blocks=60), max_step_tokens=200)
    prompts = [PROMPT[:135], PROMPT[3:9]]  # more rows than the kernels for few take, then two
    requests = [
        make_request(str(i), prompt, Ending(max_tokens=num_tokens))
        for i, prompt in enumerate(prompts)
    ]
    return list(driver.run(requests).values())


@pytest.mark.parametrize("name", RECIPES)
def test_logits_on_a_cpu(tmp_path: Path, name: str) -> None:
    quantised = write(tmp_path, RECIPES[name])
    expected = logits(load(tmp_path / "plain"), 50)
    assert expected.std() > 0.5  # or nothing is compared
    torch.testing.assert_close(logits(load(quantised), 50), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["awq", "gptq-8-act-order", "fp8"])
def test_greedy_tokens_of_triton_kernels(tmp_path: Path, name: str) -> None:
    quantised = write(tmp_path, RECIPES[name])
    model = load_with(LINEAR, quantised)
    kind = ByteLinear if name == "fp8" else GroupedLinear
    assert isinstance(model.layers[0].qkv, kind)
    assert isinstance(model.layers[0].down, kind)
    assert greedy(model) == greedy(load(tmp_path / "plain"))
    torch.testing.assert_close(logits(model), logits(load(quantised)), atol=1e-4, rtol=1e-5)


def test_biases_of_quantised_layers(tmp_path: Path) -> None:
    quantised = write(tmp_path, RECIPES["gptq"], "llama-tied-biased")
    expected = logits(load(tmp_path / "plain"))
    torch.testing.assert_close(logits(load(quantised)), expected, atol=1e-4, rtol=1e-5)
    found = logits(load_with(LINEAR, quantised))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


def test_parts_in_orders_of_their_own(tmp_path: Path) -> None:
    def make(weight: Tensor, name: str) -> tuple[dict[str, Tensor], Tensor]:
        return gptq(weight, name[::-1], act_order=True)  # so that q, k and v differ

    quantised = write(tmp_path, Recipe(GPTQ | {"desc_act": True}, make))
    g_idx = load_file(quantised / "model.safetensors")
    q, k = (g_idx[f"model.layers.0.self_attn.{part}_proj.g_idx"] for part in "qk")
    assert not torch.equal(q, k)
    expected = logits(load(tmp_path / "plain"))
    found = logits(load_with(LINEAR, quantised))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


# --- Sizes ------------------------------------------------------------------------------------


def num_bytes(layer: Layer) -> int:
    """Of the weights, in whatever way they are kept."""
    total = 0
    for linear in (layer.qkv, layer.out, layer.gate_up, layer.down):
        assert isinstance(linear, ByteLinear | GroupedLinear)
        total += sum(tensor.nbytes for tensor in linear.weight.tensors())
    return total


@pytest.mark.parametrize("name", ["awq", "gptq-8", "gptq-8-channel", "packed", "int8", "fp8"])
def test_the_room_that_a_model_takes(tmp_path: Path, name: str) -> None:
    quantised = open_weights(write(tmp_path, RECIPES[name], kept=("lm_head",)))
    plain = open_weights(tmp_path / "plain")
    model = load_model(quantised, LINEAR, torch.bfloat16, CPU, 8)
    used = sum(map(num_bytes, model.layers)) + 2 * model.embedding.nbytes
    assert weight_bytes(quantised, LINEAR, torch.bfloat16) == used
    as_floats = weight_bytes(plain, LINEAR, torch.bfloat16)
    assert used < 0.9 * as_floats
    assert weight_bytes(quantised, torch_ops(), torch.bfloat16) == as_floats


def test_the_room_that_a_part_takes(tmp_path: Path) -> None:
    quantised = open_weights(write(tmp_path, RECIPES["awq"], kept=("lm_head",)))
    sizes = [weight_bytes(quantised, LINEAR, torch.bfloat16, Shard(r, 2)) for r in (0, 1)]
    assert sum(sizes) == weight_bytes(quantised, LINEAR, torch.bfloat16)


# --- Several ranks ----------------------------------------------------------------------------


@dataclass
class Rank(Alone):
    """One of two that never hear of each other: sums are its own part."""

    shard: Shard


@pytest.mark.parametrize("ops", [torch_ops(), LINEAR], ids=lambda ops: ops.name)
@pytest.mark.parametrize("name", ["gptq-8", "packed", "int8", "fp8", "fp8-channel"])
def test_ranks_have_their_parts(tmp_path: Path, name: str, ops: Ops) -> None:
    kept = ("lm_head",)
    if name in {"gptq-8", "packed"}:  # 48 inputs are no groups
        kept += tuple(f"model.layers.{index}.mlp.down_proj" for index in range(3))
    quantised = write(tmp_path, RECIPES[name], kept=kept)
    whole = load(quantised).layers[0]
    ranks = [load_with(ops, quantised, Rank(Shard(rank, 2))).layers[0] for rank in (0, 1)]
    x, attended, middle = torch.randn(2, 64), torch.randn(2, 64), torch.randn(2, 96)
    parts = [torch.cat(pair, -1) for pair in zip(*(split(r.qkv(x)) for r in ranks), strict=True)]
    torch.testing.assert_close(torch.cat(parts, -1), whole.qkv(x), atol=1e-4, rtol=1e-5)
    halves = zip(ranks, attended.chunk(2, -1), strict=True)
    summed = sum(rank.out(half.contiguous()) for rank, half in halves)
    torch.testing.assert_close(summed, whole.out(attended), atol=1e-4, rtol=1e-5)
    halves = zip(ranks, middle.chunk(2, -1), strict=True)
    summed = sum(rank.down(half.contiguous()) for rank, half in halves)
    torch.testing.assert_close(summed, whole.down(middle), atol=1e-4, rtol=1e-5)


def split(qkv: Tensor) -> list[Tensor]:
    """q, k and v of one rank of two."""
    return list(torch.split(qkv, [32, 16, 16], dim=-1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("awq", r"down_proj: weights in groups of 32 cannot be cut at the inputs 0 and 48"),
        ("gptq-act-order", r"o_proj: weights in order of activation \(desc_act\) cannot be cut"),
    ],
)
def test_ranks_that_cannot_have_parts(tmp_path: Path, name: str, message: str) -> None:
    quantised = write(tmp_path, RECIPES[name])
    with pytest.raises(ModelError, match=message):
        load_with(LINEAR, quantised, Rank(Shard(0, 2)))


# --- Tensors beside the weights ---------------------------------------------------------------


def add(folder: Path, **tensors: Tensor) -> None:
    file = folder / "model.safetensors"
    named = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file(load_file(file) | named, file)


def test_biases_of_zeros_and_scales_of_the_cache_are_passed_over(tmp_path: Path) -> None:
    quantised = write(tmp_path, RECIPES["gptq"])
    add(quantised, model__layers__0__self_attn__q_proj__bias=torch.zeros(64))
    add(quantised, model__layers__0__self_attn__k_scale=torch.ones(1))
    load(quantised)
    add(quantised, model__layers__0__self_attn__q_proj__bias=torch.ones(64))
    with pytest.raises(ModelError, match=r"not supported, the first: .*q_proj\.bias"):
        load(quantised)


def test_what_is_wrong_names_its_layer(tmp_path: Path) -> None:
    quantised = write(tmp_path, RECIPES["gptq"])
    add(quantised, model__layers__1__mlp__down_proj__scales=torch.zeros(6, 64))
    with pytest.raises(ModelError, match=r"^model\.layers\.1\.mlp\.down_proj: .*\[3, 64\]"):
        load(quantised)
    with pytest.raises(
        ModelError, match=r"^model\.layers\.1\.mlp\.down_proj: 96 inputs in 6 groups"
    ):
        weight_bytes(open_weights(quantised), LINEAR, torch.bfloat16)


def test_blocks_that_no_config_tells_of(tmp_path: Path) -> None:
    quantised = write(tmp_path, RECIPES["fp8"])
    file = quantised / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.mlp.down_proj.weight_scale"
    tensors[f"{name}_inv"] = tensors.pop(name)
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"down_proj\.weight has the type float8_e4m3fn"):
        load(quantised)


def test_a_quantised_head(tmp_path: Path) -> None:
    quantised = write(tmp_path, RECIPES["packed"], kept=())
    file, plain = quantised / "model.safetensors", tmp_path / "plain" / "model.safetensors"
    tensors, floats = load_file(file), load_file(plain)
    made, floats["lm_head.weight"] = RECIPES["packed"].make(tensors.pop("lm_head.weight"), "")
    save_file(tensors | {f"lm_head.{part}": tensor for part, tensor in made.items()}, file)
    save_file(floats, plain)
    expected = logits(load(tmp_path / "plain"))
    torch.testing.assert_close(logits(load(quantised)), expected, atol=1e-4, rtol=1e-5)
    assert json.loads((quantised / "config.json").read_text())["tie_word_embeddings"] is False
