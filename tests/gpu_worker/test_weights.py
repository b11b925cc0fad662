"""Model files of every kind to the same model; broken and unsupported ones to one clear error."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gpu_worker.engine import ModelError
from gpu_worker.gguf_weights import GgufWeights
from gpu_worker.model_config import from_hugging_face, rotary_table
from gpu_worker.ops import torch_ops
from gpu_worker.weights import load_model, open_weights
from tests.gpu_worker.tiny import CPU, load, make_reference

QUANTISED = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
FAMILIES = ("llama", "qwen2", "qwen3")


def directory(tmp_path: Path, family: str) -> Path:
    make_reference(family).save_pretrained(tmp_path)
    return tmp_path


def gguf_name(name: str) -> str:
    for theirs, ours in GGUF_NAMES.items():
        name = name.replace(theirs, ours)
    return name.replace("model.layers.", "blk.")


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as GGUF's llama has them: d and d + D/2 of each head side by side."""
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def write_gguf(
    folder: Path, file: Path, family: str, kind: str = "F32", extra: dict[str, Any] | None = None
) -> Path:
    """The model of a Hugging Face directory as GGUF, its matrices quantised."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, family)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
    for key, value in (extra or {}).items():
        writer.add_key_value(f"{family}.{key}", value, gguf.GGUFValueType.get_type(value))
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(folder / "model.safetensors").items():
        weight = tensor.numpy()
        for part, count in heads.items():
            if family == "llama" and part in name:
                weight = permuted(weight, count)
        quantisation = gguf.GGMLQuantizationType[kind if weight.ndim == 2 else "F32"]
        data = gguf.quantize(weight, quantisation)
        writer.add_tensor(gguf_name(name), data, raw_dtype=quantisation)
    if family == "llama":  # its scaling, as the converter works it out
        plain = config["rope_parameters"]["rope_theta"] ** -(np.arange(0, 16, 2) / 16)
        frequencies = np.array(from_hugging_face(config).frequencies)
        writer.add_tensor("rope_freqs.weight", (plain / frequencies).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def tensors(path: Path) -> dict[str, Tensor]:
    weights = open_weights(path)
    return {name: weights.read(name).float() for name in weights.names()}


# --- GGUF -------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_is_the_model_that_it_was_made_from(tmp_path: Path, family: str) -> None:
    folder = directory(tmp_path, family)
    file = write_gguf(folder, tmp_path / "model.gguf", family)
    expected, found = open_weights(folder).config, open_weights(file).config
    np.testing.assert_allclose(found.frequencies, expected.frequencies, rtol=1e-5)
    assert found.norm_eps == pytest.approx(expected.norm_eps)
    rounded = {"frequencies": expected.frequencies, "norm_eps": expected.norm_eps}
    assert replace(found, **rounded) == expected
    read = tensors(file)
    for name, tensor in tensors(folder).items():
        torch.testing.assert_close(read[name], tensor, msg=name)
    load(file)


@pytest.mark.parametrize("kind", QUANTISED)
def test_every_quantisation_is_near_the_weights(tmp_path: Path, kind: str) -> None:
    folder = directory(tmp_path, "llama")
    read = tensors(write_gguf(folder, tmp_path / "model.gguf", "llama", kind))
    for name, tensor in tensors(folder).items():
        error = (read[name] - tensor).norm() / tensor.norm()
        assert error < {"F32": 1e-7, "F16": 1e-3, "BF16": 1e-2, "Q8_0": 1e-2}.get(kind, 0.15)


def test_linear_rope_of_gguf(tmp_path: Path) -> None:
    folder = directory(tmp_path, "qwen3")
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    scaled = GgufWeights(write_gguf(folder, tmp_path / "a.gguf", "qwen3", extra=scaling)).config
    plain = GgufWeights(write_gguf(folder, tmp_path / "b.gguf", "qwen3")).config
    np.testing.assert_allclose(np.array(scaled.frequencies) * 4, plain.frequencies, rtol=1e-6)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        pytest.param({"expert_count": 8}, "experts", id="experts"),
        pytest.param({"rope.scaling.type": "yarn"}, "rope type yarn", id="yarn"),
        pytest.param({"rope.scaling.factor": [1.0, 2.0]}, "differs from layer", id="by-layer"),
        pytest.param({"rope.dimension_count": 8}, "rotation of 8", id="partial-rotation"),
    ],
)
def test_what_gguf_has_and_we_have_not(tmp_path: Path, extra: dict[str, Any], message: str) -> None:
    file = write_gguf(directory(tmp_path, "qwen3"), tmp_path / "m.gguf", "qwen3", extra=extra)
    with pytest.raises(ModelError, match=message):
        open_weights(file)


def test_gguf_of_another_architecture(tmp_path: Path) -> None:
    file = write_gguf(directory(tmp_path, "qwen3"), tmp_path / "m.gguf", "gemma3")
    with pytest.raises(ModelError, match=r"gemma3 is not supported .* llama, qwen2, qwen3"):
        open_weights(file)


def test_gguf_that_is_cut_off(tmp_path: Path) -> None:
    file = write_gguf(directory(tmp_path, "qwen3"), tmp_path / "m.gguf", "qwen3")
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(ModelError, match="cut off"):
        load(file)
    file.write_bytes(whole[:200])
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        load(file)
    file.write_bytes(b"no model at all")
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        load(file)


# --- Hugging Face directories -----------------------------------------------------------------


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"architectures": ["GemmaForCausalLM"]}, "GemmaForCausalLM", id="family"),
        pytest.param({"architectures": None}, "architecture none", id="no-family"),
        pytest.param({"architectures": ["MixtralForCausalLM"]}, "Mixtral", id="experts"),
        pytest.param({"architectures": ["LlavaForConditionalGeneration"]}, "Llava", id="vision"),
        pytest.param(
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn", id="rope"
        ),
        pytest.param({"quantization_config": {"quant_method": "hqq"}}, "hqq", id="quantised"),
        pytest.param({"hidden_act": "gelu"}, "gelu", id="activation"),
        pytest.param({"partial_rotary_factor": 0.5}, "partial_rotary_factor", id="rotation"),
        pytest.param({"num_key_value_heads": 3}, "3 key/value heads", id="groups"),
        pytest.param({"intermediate_size": 95}, r"\[96, 64\].*\[95, 64\]", id="shape"),
        pytest.param({"num_hidden_layers": 2}, "layers.2", id="tensors-left"),
        pytest.param({"num_hidden_layers": 4}, r"lacks .*layers\.3", id="tensors-missing"),
    ],
)
def test_what_a_config_asks_for_and_we_have_not(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = directory(tmp_path, "llama")
    edit_config(folder, **changes)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_a_config_without_a_size(tmp_path: Path) -> None:
    folder = directory(tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text())
    del config["hidden_size"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="no 'hidden_size'"):
        load(folder)


def test_files_that_are_missing_or_broken(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load(tmp_path)
    folder = directory(tmp_path, "llama")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be read"):
        load(folder)
    weights.unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        load(folder)


def test_integers_are_no_weights(tmp_path: Path) -> None:
    folder = directory(tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].int()
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelError, match="int32"):
        load(folder)


def test_the_older_way_to_write_rope(tmp_path: Path) -> None:
    folder = directory(tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text())
    newer = from_hugging_face(config)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    assert from_hugging_face(config) == newer


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen2-windows"])
def test_the_older_way_to_write_windows(tmp_path: Path, family: str) -> None:
    config = json.loads((directory(tmp_path, family) / "config.json").read_text())
    older = {key: value for key, value in config.items() if key != "layer_types"}
    windows = {"mistral": (24, 24, 24), "qwen2": (0, 0, 0), "qwen2-windows": (0, 16, 16)}
    assert from_hugging_face(config).windows == windows[family]
    assert from_hugging_face(older).windows == windows[family]


def test_rotary_table_has_cosines_then_sines() -> None:
    table = rotary_table((1.0, 0.25), 8)
    expected = [np.cos(3), np.cos(0.75), np.sin(3), np.sin(0.75)]
    np.testing.assert_allclose(table[3], expected, rtol=1e-6)


def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    shares: list[float] = []
    weights = open_weights(directory(tmp_path, "llama"))
    load_model(
        weights, torch_ops(), torch.bfloat16, CPU, 8, lambda _what, share: shares.append(share)
    )
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
