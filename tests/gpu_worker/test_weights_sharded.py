"""Checkpoints in several files: which are read, what is missing, and what memory it takes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gpu_worker.engine import ModelError
from gpu_worker.ops import torch_ops
from gpu_worker.weights import load_model, open_weights
from tests.gpu_worker.quantise import RECIPES, write
from tests.gpu_worker.tiny import CPU, load, make_reference

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    make_reference("llama").save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    return tmp_path


def test_files_that_the_index_does_not_name_are_not_read(sharded: Path) -> None:
    (sharded / "adapter.safetensors").write_bytes(b"not safetensors at all")
    load(sharded)
    (sharded / INDEX).unlink()
    with pytest.raises(ModelError, match=r"adapter\.safetensors: cannot be read as safetensors"):
        load(sharded)


def test_a_file_with_all_wins_over_an_index(sharded: Path, tmp_path_factory: Any) -> None:
    whole = tmp_path_factory.mktemp("whole")
    make_reference("llama").save_pretrained(whole)
    (whole / INDEX).write_text((sharded / INDEX).read_text())  # of files that are not there
    (whole / "adapter.safetensors").write_bytes(b"not safetensors at all")
    load(whole)


def test_a_file_that_is_missing(sharded: Path) -> None:
    missing = sorted(sharded.glob("*.safetensors"))[1]
    missing.unlink()
    with pytest.raises(ModelError, match=f"lacks {missing.name}, which {INDEX} names") as refused:
        load(sharded)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as a model"),
        ("{}", "cannot be read as a model: no 'weight_map'"),
        ('{"weight_map": []}', "weight_map is not a JSON object"),
    ],
)
def test_an_index_that_is_none(sharded: Path, text: str, message: str) -> None:
    (sharded / INDEX).write_text(text)
    with pytest.raises(ModelError, match=message):
        load(sharded)


def test_tensors_of_one_layer_in_several_files(tmp_path: Path) -> None:
    quantised = write(tmp_path, RECIPES["gptq"])
    tensors = load_file(quantised / "model.safetensors")
    (quantised / "model.safetensors").unlink()
    parts: list[dict[str, Tensor]] = [{}, {}]
    for count, (name, tensor) in enumerate(sorted(tensors.items())):
        parts[count % 2][name] = tensor
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name, part in zip(names, parts, strict=True):
        save_file(part, quantised / name)
    files = {name: file for file, part in zip(names, parts, strict=True) for name in part}
    (quantised / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    x = torch.randn(3, 64)
    expected = load(tmp_path / "plain").layers[0].qkv(x)
    torch.testing.assert_close(load(quantised).layers[0].qkv(x), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("recipe", [None, "awq", "fp8"])
def test_progress_counts_bytes(tmp_path: Path, recipe: str | None) -> None:
    if recipe:
        folder = write(tmp_path, RECIPES[recipe])
    else:
        folder = tmp_path
        make_reference("llama").save_pretrained(tmp_path)
    shares: list[float] = []
    weights = open_weights(folder)
    load_model(
        weights, torch_ops(), torch.bfloat16, CPU, 8, lambda _what, share: shares.append(share)
    )
    sizes = {
        name: tensor.nbytes for name, tensor in load_file(folder / "model.safetensors").items()
    }
    assert {name: weights.num_bytes(name) for name in weights.names()} == sizes
    assert shares == sorted(shares)
    assert shares[:2] == [0.0, sizes["model.embed_tokens.weight"] / sum(sizes.values())]
    assert shares[-1] == 1.0
    assert len(shares) <= 102  # a line in a log for each


# --- Memory -----------------------------------------------------------------------------------

# Loads a model and prints in bytes: what the process held before, at most, and in the end.
MEASURE = """
import sys, torch
from pathlib import Path
from gpu_worker.memory import resident_bytes
from gpu_worker.ops import torch_ops
from gpu_worker.weights import load_model, open_weights
cpu = torch.device("cpu")
weights = open_weights(Path(sys.argv[1]))
Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of the imports
before = resident_bytes(cpu)
model = load_model(weights, torch_ops(), torch.bfloat16, cpu, 64)
status = Path("/proc/self/status").read_text().split()
print(before, int(status[status.index("VmHWM:") + 1]) * 1024, resident_bytes(cpu))
"""
SIZES: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 16384,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}


def write_large(folder: Path) -> tuple[int, int]:
    """A model of three files; (bytes of all tensors, bytes of the largest)."""
    (folder / "config.json").write_text(json.dumps(SIZES))
    width, ffn, outer = 1024, (4096, 1024), (16384, 1024)
    tensors = {"model.embed_tokens.weight": outer, "lm_head.weight": outer}
    shapes: dict[str, tuple[int, ...]] = tensors | {"model.norm.weight": (width,)}
    for index in range(6):
        prefix = f"model.layers.{index}."
        shapes |= {f"{prefix}self_attn.{part}_proj.weight": (width, width) for part in "qkvo"}
        shapes |= {f"{prefix}mlp.{part}_proj.weight": ffn for part in ("gate", "up")}
        shapes |= {f"{prefix}mlp.down_proj.weight": ffn[::-1]}
        shapes |= {
            f"{prefix}{norm}_layernorm.weight": (width,) for norm in ("input", "post_attention")
        }
    made = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    names = list(made)
    for part in range(3):
        save_file({name: made[name] for name in names[part::3]}, folder / f"{part}.safetensors")
    sizes = [tensor.nbytes for tensor in made.values()]
    return sum(sizes), max(sizes)


def test_no_second_copy_is_ever_in_memory(tmp_path: Path) -> None:
    model, largest = write_large(tmp_path)
    assert model > 250e6
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    before, peak, after = map(int, done.stdout.split())
    assert model < after - before < 1.1 * model
    assert peak - after < 1.5 * largest
