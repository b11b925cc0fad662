"""A model on several ranks gives the tokens of one, whatever of it is split and how."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from transformers import PreTrainedModel

from common.config import WorkerSettings
from gpu_worker import memory
from gpu_worker.engine import Capacity, EngineError, ModelError
from gpu_worker.loading import load_engine
from gpu_worker.ops import torch_ops
from gpu_worker.parallel import ALONE, Group, embed
from gpu_worker.parallel_torch import listen, meet
from gpu_worker.shard import Shard, check_split
from gpu_worker.weights import load_model, open_weights, weight_bytes
from tests.gpu_worker import tiny
from tests.gpu_worker.ranks import Answers, answers, on_threads
from tests.gpu_worker.test_weights import write_gguf
from tests.gpu_worker.tiny import CPU, make_reference

ODD_VOCAB = 317  # no multiple of any number of ranks
FAMILIES = ("llama", "llama-tied-biased", "qwen2", "qwen3", "odd", "odd-tied")


def make(family: str, monkeypatch: pytest.MonkeyPatch) -> PreTrainedModel:
    if family.startswith("odd"):
        model_class, config = tiny.FAMILIES["llama-tied-biased" if "tied" in family else "qwen3"]
        odd = type(config).from_dict(config.to_dict() | {"vocab_size": ODD_VOCAB})
        odd._attn_implementation = "eager"
        monkeypatch.setitem(tiny.FAMILIES, family, (model_class, odd))
    return make_reference(family)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for family in FAMILIES:
            found[family] = tmp_path_factory.mktemp(family)
            make(family, monkeypatch).save_pretrained(found[family])
    return found


@pytest.fixture(scope="module")
def alone(folders: dict[str, Path]) -> dict[str, Answers]:
    return {family: answers(folder, ALONE) for family, folder in folders.items()}


@pytest.mark.parametrize(
    ("family", "size"),
    [(family, 2) for family in FAMILIES] + [("odd", 4)],  # two of four share a key/value head
)
def test_ranks_give_the_tokens_of_one(
    folders: dict[str, Path], alone: dict[str, Answers], family: str, size: int
) -> None:
    for found in on_threads(size, lambda group: answers(folders[family], group)):
        assert found == alone[family]


def test_processes_give_the_tokens_of_one(
    folders: dict[str, Path], alone: dict[str, Answers]
) -> None:
    families = ("llama-tied-biased", "odd")
    paths = [folders[family] for family in families]
    with listen() as meeting:
        port = str(meeting.getsockname()[1])
        command = [sys.executable, "-m", "tests.gpu_worker.ranks", "1", "2", port, *map(str, paths)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
            group = meet(int(port), Shard(0, 2), CPU, meeting)
            try:
                here = [answers(path, group) for path in paths]
            finally:
                distributed.destroy_process_group()
            told, _ = other.communicate(timeout=60)
    expected = [alone[family] for family in families]
    assert here == expected
    assert json.loads(told) == expected


def test_weights_are_split_and_not_copied(folders: dict[str, Path]) -> None:
    def shapes(group: Group) -> tuple[list[int], list[int]]:
        weights, widths = open_weights(folders["odd"]), []
        ops = replace(
            torch_ops(), pack=lambda weight, _: widths.append(list(weight.shape)) or torch.relu
        )
        model = load_model(weights, ops, torch.float32, CPU, 8, group=group)
        return list(model.embedding.shape), widths[:4] + widths[-1:]

    layer = [[(2 + 2) * 32, 64], [64, 2 * 32], [96, 64], [64, 48]]  # qkv, out, gate_up, down
    expected = ([159, 64], [*layer, [159, 64]])  # the embedding; layers, and the head
    assert on_threads(2, shapes) == [expected, expected]


def test_every_rank_has_the_same_logits_of_the_whole_vocabulary(folders: dict[str, Path]) -> None:
    def logits(group: Group) -> torch.Tensor:
        model = load_model(
            open_weights(folders["odd"]), torch_ops(), torch.bfloat16, CPU, 8, group=group
        )
        x = torch.arange(3.0)[:, None].repeat(1, 64).bfloat16()
        return model.logits(x, x, torch.tensor([2, 0]))

    first, *others = on_threads(4, logits)
    assert first.shape == (2, ODD_VOCAB)
    assert all(torch.equal(first, other) for other in others)


def test_weight_bytes_are_those_of_a_rank(folders: dict[str, Path]) -> None:
    weights = open_weights(folders["llama"])
    whole = weight_bytes(weights, torch_ops(), torch.float32)
    assert weight_bytes(weights, torch_ops(), torch.float32, Shard(1, 2)) == whole // 2


def settings(folder: Path, **changes: Any) -> WorkerSettings:
    cpu = {"backend": "cpu", "kernels": "torch", "dtype": "float32", "threads": 1}
    return WorkerSettings(model=str(folder), tensor_parallel=2, **{**cpu, **changes})


def test_what_settings_give_a_worker_its_ranks_share(folders: dict[str, Path]) -> None:
    block = 2 * 3 * 1 * 16 * 32 * 4  # K and V, layers, heads of a rank, tokens, head size, float32
    shared = settings(folders["odd"], threads=4, kv_bytes=2 * 100 * block, swap_bytes=2 * 7 * block)

    def load(group: Group) -> tuple[Capacity, int]:
        capacity = load_engine(shared, meet=lambda _device: group).capacity
        return capacity, torch.get_num_threads()

    for capacity, num_threads in on_threads(2, load):
        assert (capacity.num_blocks, capacity.num_host_blocks, num_threads) == (100, 7, 2)
        assert capacity.device == "cpu (torch kernels), 2 ranks"


def test_ranks_have_as_many_blocks_as_the_one_with_the_least_memory(
    folders: dict[str, Path],
) -> None:
    def load(group: Group) -> int:
        of_rank = settings(folders["odd"], num_blocks=20 + group.shard.rank)
        return load_engine(of_rank, meet=lambda _device: group).capacity.num_blocks

    assert on_threads(2, load) == [20, 20]


def test_ranks_on_a_cpu_share_its_memory(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = open_weights(folders["odd"])
    of_a_rank = weight_bytes(weights, torch_ops(), torch.float32, Shard(0, 2))
    monkeypatch.setattr(memory, "free_bytes", lambda _device: 2 * of_a_rank - 2)
    with pytest.raises(EngineError, match="the weights take"):
        load_engine(settings(folders["odd"]))


def test_a_model_is_refused_before_other_ranks_are_waited_for(folders: dict[str, Path]) -> None:
    three = replace(settings(folders["odd"]), tensor_parallel=3)
    with pytest.raises(ModelError, match="--tensor-parallel 3"):
        load_engine(three, meet=lambda _device: pytest.fail("met"))


def test_an_embedding_of_which_each_rank_has_a_part() -> None:
    table = torch.arange(10.0)[:, None].repeat(1, 3)  # row 9 pads
    tokens = torch.tensor([0, 4, 5, 8], dtype=torch.int32)
    found = on_threads(2, lambda group: embed(tokens, table.chunk(2)[group.shard.rank], group))
    assert all(torch.equal(each, table[[0, 4, 5, 8]]) for each in found)


@pytest.mark.parametrize(
    ("size", "changes", "possible"),
    [
        pytest.param(3, {}, "1, 2, 4", id="heads"),
        pytest.param(2, {"num_groups": 4, "ffn_width": 97}, "1", id="feed-forward"),
        pytest.param(4, {"num_heads": 12, "num_groups": 6}, "1, 2, 3, 6, 12", id="groups"),
    ],
)
def test_what_cannot_be_split_says_what_can(
    folders: dict[str, Path], size: int, changes: dict[str, int], possible: str
) -> None:
    config = replace(open_weights(folders["llama"]).config, **changes)
    with pytest.raises(ModelError, match=rf"--tensor-parallel {size}: .* takes {possible}$"):
        check_split(config, size)


def test_parts_of_a_vocabulary_that_runs_out() -> None:
    parts = [Shard(rank, 4).tokens(5) for rank in range(4)]
    assert [(part.start, part.stop) for part in parts] == [(0, 2), (2, 4), (4, 5), (5, 5)]


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q5_1"])
def test_parts_of_a_gguf_file_are_parts_of_its_tensors(
    folders: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """Also where a part begins in the middle of a quantised block of 32."""
    weights = open_weights(write_gguf(folders["llama"], tmp_path / "m.gguf", "llama", kind))
    for name in weights.names() - {"rope_freqs.weight"}:
        whole = weights.read(name)
        assert weights.shape(name) == tuple(whole.shape)
        parts = [slice(length // 2, length) for length in whole.shape]
        for part in ((), parts[:1], parts, [slice(0, length // 2) for length in whole.shape]):
            assert torch.equal(weights.read(name, *part), whole[tuple(part)]), name
