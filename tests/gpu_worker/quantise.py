"""Checkpoints in quantised formats, made from the formats' definitions and from nothing of ours.

Each maker turns a weight [O, I] into the tensors of its format, and into the weight that they
stand for. Axes: I inputs, O outputs, J groups.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.gpu_worker.tiny import make_reference

Made = tuple[dict[str, Tensor], Tensor]
GROUP = 32
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs lies in bits 4i of a word


@dataclass(frozen=True)
class Recipe:
    config: Mapping[str, Any]  # quantization_config
    make: Callable[[Tensor, str], Made]  # of a weight, and of the name of its layer


def words(numbers: np.ndarray, bits: int, places: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """[a, b] numbers to int32 [a, b bits / 32]; bits `bits * i` hold number places[i] of each."""
    count = 32 // bits
    packed = np.zeros((numbers.shape[0], numbers.shape[1] // count), np.uint32)
    for column in range(packed.shape[1]):
        for i, place in zip(range(count), places, strict=False):
            number = numbers[:, column * count + place].astype(np.uint32)
            packed[:, column] |= number << np.uint32(bits * i)
    return torch.from_numpy(packed.view(np.int32).copy())


def levels_of(
    weight: Tensor, g_idx: np.ndarray, bits: int, symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tensor]:
    """(levels [O, I], scale [J, O] float16, zero [J, O], the weight that they stand for)."""
    values, top = weight.double().numpy(), 2**bits - 1
    num_groups = int(g_idx.max()) + 1
    levels = np.zeros(values.shape, np.int64)
    scale = np.zeros((num_groups, len(values)), np.float16)
    zero = np.zeros((num_groups, len(values)), np.int64)
    meant = np.zeros(values.shape)
    for j in range(num_groups):
        inside = g_idx == j
        least = np.minimum(values[:, inside].min(1), 0)
        most = np.maximum(values[:, inside].max(1), 0)
        if symmetric:
            most = np.maximum(most, -least)
            least = -most
        scale[j] = (most - least) / top
        each = scale[j].astype(np.float64)
        zero[j] = 2 ** (bits - 1) if symmetric else np.round(-least / each)
        levels[:, inside] = np.clip(
            np.round(values[:, inside] / each[:, None]) + zero[j][:, None], 0, top
        )
        meant[:, inside] = (levels[:, inside] - zero[j][:, None]) * each[:, None]
    return levels, scale, zero, torch.from_numpy(meant).float()


def in_order(num_in: int, group: int = GROUP) -> np.ndarray:
    return np.arange(num_in) // group


def by_activation(num_in: int, name: str) -> np.ndarray:
    """A group for each input, out of order; the same for layers that read the same inputs."""
    seed = sum(map(ord, name.rpartition(".")[0]))
    return np.random.default_rng(seed).permutation(in_order(num_in))


def awq(weight: Tensor, _name: str) -> Made:
    levels, scale, zero, meant = levels_of(weight, in_order(weight.shape[1]), 4, symmetric=False)
    tensors = {
        "qweight": words(levels.T, 4, AWQ_PLACES),
        "qzeros": words(zero, 4, AWQ_PLACES),
        "scales": torch.from_numpy(scale),
    }
    return tensors, meant


def gptq(
    weight: Tensor,
    name: str,
    bits: int = 4,
    group: int = GROUP,
    symmetric: bool = True,
    act_order: bool = False,
    less_one: bool = True,
) -> Made:
    num_in = weight.shape[1]
    g_idx = by_activation(num_in, name) if act_order else in_order(num_in, group)
    levels, scale, zero, meant = levels_of(weight, g_idx, bits, symmetric)
    qzeros = words(zero, bits).numpy().view(np.uint32).astype(np.uint64)
    if less_one:  # off all numbers of a word at once, so that 0 borrows from the next
        qzeros -= sum(1 << bits * i for i in range(32 // bits))
    tensors = {
        "qweight": words(levels, bits).T.contiguous(),
        "qzeros": torch.from_numpy(qzeros.astype(np.uint32).view(np.int32)),
        "scales": torch.from_numpy(scale),
        "g_idx": torch.from_numpy(g_idx.astype(np.int32)),
    }
    return tensors, meant


def packed(
    weight: Tensor,
    name: str,
    bits: int = 4,
    group: int = GROUP,
    symmetric: bool = True,
    act_order: bool = False,
) -> Made:
    num_in = weight.shape[1]
    g_idx = by_activation(num_in, name) if act_order else in_order(num_in, group)
    levels, scale, zero, meant = levels_of(weight, g_idx, bits, symmetric)
    tensors = {
        "weight_packed": words(levels, bits),
        "weight_scale": torch.from_numpy(scale.T.copy()).bfloat16(),
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        tensors["weight_zero_point"] = words(zero.T.T, bits).T.contiguous()
    if act_order:
        tensors["weight_g_idx"] = torch.from_numpy(g_idx.astype(np.int32))
    rounded = tensors["weight_scale"].float().T.numpy()[g_idx].T / scale.astype(np.float32)[g_idx].T
    return tensors, meant * torch.from_numpy(rounded)


def int8(weight: Tensor, _name: str, symmetric: bool = True) -> Made:
    num_in = weight.shape[1]
    levels, scale, zero, meant = levels_of(weight, in_order(num_in, num_in), 8, symmetric)
    tensors = {
        "weight": torch.from_numpy((levels - 128).astype(np.int8)),
        "weight_scale": torch.from_numpy(scale.T.copy()),
    }
    if not symmetric:
        tensors["weight_zero_point"] = torch.from_numpy((zero.T - 128).astype(np.int8))
    return tensors, meant


def fp8(weight: Tensor, _name: str, by_channel: bool = False) -> Made:
    largest = weight.abs().amax(1, keepdim=True) if by_channel else weight.abs().max()
    scale = (largest / 448).float()
    values = (weight / scale).to(torch.float8_e4m3fn)
    tensors = {"weight": values, "weight_scale": scale}
    if not by_channel:
        tensors["input_scale"] = torch.tensor(0.02)  # of activations: to be ignored
    return tensors, values.float() * scale


def compressed(layout: str, **weights: Any) -> dict[str, Any]:
    scheme = {"type": "int", "num_bits": 4, "strategy": "group", "symmetric": True} | weights
    groups = {"group_0": {"targets": ["Linear"], "weights": scheme, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": groups}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
V2 = GPTQ | {"checkpoint_format": "gptq_v2", "sym": False}


def _gptq(**how: Any) -> Callable[[Tensor, str], Made]:
    return lambda weight, name: gptq(weight, name, **how)


def _packed(**how: Any) -> Callable[[Tensor, str], Made]:
    return lambda weight, name: packed(weight, name, **how)


RECIPES: dict[str, Recipe] = {
    "awq": Recipe(AWQ, awq),
    "gptq": Recipe(GPTQ, _gptq()),
    "gptq-asymmetric": Recipe(GPTQ | {"sym": False}, _gptq(symmetric=False)),
    "gptq-act-order": Recipe(GPTQ | {"desc_act": True}, _gptq(act_order=True)),
    "gptq-8": Recipe(GPTQ | {"bits": 8}, _gptq(bits=8, symmetric=False)),
    "gptq-8-act-order": Recipe(GPTQ | {"bits": 8}, _gptq(bits=8, act_order=True)),
    "gptq-channel": Recipe(GPTQ | {"group_size": -1}, _gptq(group=1 << 20)),
    "gptq-8-channel": Recipe(GPTQ | {"bits": 8, "group_size": -1}, _gptq(bits=8, group=1 << 20)),
    "gptq-v2": Recipe(V2, _gptq(symmetric=False, less_one=False)),
    "packed": Recipe(compressed("pack-quantized"), _packed()),
    "packed-asymmetric": Recipe(
        compressed("pack-quantized", symmetric=False), _packed(symmetric=False)
    ),
    "packed-act-order": Recipe(
        compressed("pack-quantized", actorder="group"), _packed(act_order=True)
    ),
    "packed-8": Recipe(
        compressed("pack-quantized", num_bits=8, strategy="channel"), _packed(bits=8, group=1 << 20)
    ),
    "int8": Recipe(compressed("int-quantized", num_bits=8, strategy="channel"), int8),
    "int8-asymmetric": Recipe(
        compressed("int-quantized", num_bits=8, strategy="channel", symmetric=False),
        lambda weight, name: int8(weight, name, symmetric=False),
    ),
    "fp8": Recipe({"quant_method": "fp8", "activation_scheme": "static"}, fp8),
    "fp8-channel": Recipe(
        compressed("float-quantized", type="float", num_bits=8, strategy="channel"),
        lambda weight, name: fp8(weight, name, by_channel=True),
    ),
}
KEPT = ("lm_head", "model.layers.1.mlp.up_proj", "model.layers.2.self_attn.v_proj")  # in floats


def write(
    folder: Path, recipe: Recipe, family: str = "llama", kept: tuple[str, ...] = KEPT
) -> Path:
    """A tiny model quantised in `folder`/quantised, and what it stands for in `folder`/plain.

    Layers whose names begin with one of `kept` stay as they are, with their neighbours' company.
    """
    plain, quantised = folder / "plain", folder / "quantised"
    make_reference(family).save_pretrained(plain)
    make_reference(family).save_pretrained(quantised)
    meant = load_file(plain / "model.safetensors")
    tensors: dict[str, Tensor] = {}
    for name, weight in list(meant.items()):
        layer = name.removesuffix(".weight")
        if "_proj.weight" not in name or layer.startswith(kept):
            tensors[name] = weight
            continue
        made, meant[name] = recipe.make(weight.double().float(), layer)
        tensors |= {f"{layer}.{part}": tensor for part, tensor in made.items()}
    save_file(meant, plain / "model.safetensors")
    save_file(tensors, quantised / "model.safetensors")
    file = quantised / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"quantization_config": dict(recipe.config)}))
    return quantised
