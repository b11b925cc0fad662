"""Models are found, understood, and refused in one clear line."""

import json
import time
from pathlib import Path
from typing import Any

import gguf
import pytest

from common.gguf_header import GgufError, read_header
from common.model_files import ModelFilesError, locate

CONFIG = {"max_position_embeddings": 64, "vocab_size": 10, "eos_token_id": 3, "bos_token_id": 1}
TOKENIZER = {
    "added_tokens": [{"id": 1, "content": "<s>"}, {"id": 5, "content": "</s>"}],
    "model": {},
}


def write(path: Path, **files: Any) -> Path:
    """A model directory with these JSON files."""
    path.mkdir(exist_ok=True)
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


def write_gguf(path: Path, **more: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(32)
    writer.add_token_list(["<unk>", "<s>", "</s>", "é", ""])
    writer.add_token_types([2, 3, 3, 1, 1])
    writer.add_token_scores([0.0, -1.5, 2.0, 0.25, 0.0])
    writer.add_eos_token_id(2)
    writer.add_uint32("tokenizer.ggml.eot_token_id", 4)
    writer.add_add_bos_token(True)
    for key, value in more.items():
        writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_the_embedded_model_is_found_quickly(tmp_path: Path) -> None:
    start = time.perf_counter()
    files = locate("embedded", tmp_path)
    seconds = time.perf_counter() - start
    assert (files.name, files.is_gguf) == ("SmolLM2-135M-Instruct", True)
    assert (files.context_length, files.vocab_size) == (8192, 49152)
    assert (files.end_tokens, files.bos_token) == ((2,), 1)
    assert seconds < 1


def test_a_directory_gives_every_end_token(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "tiny",
        config=CONFIG,
        generation_config={"eos_token_id": [7, 3]},
        tokenizer=TOKENIZER,
        tokenizer_config={"eos_token": {"content": "</s>"}, "bos_token": "<s>"},
    )
    files = locate(str(folder), tmp_path)
    assert (files.path, files.name, files.is_gguf) == (folder, "tiny", False)
    assert (files.context_length, files.vocab_size) == (64, 10)
    assert (files.end_tokens, files.bos_token) == ((3, 5, 7), 1)


def test_a_directory_needs_only_its_config(tmp_path: Path) -> None:
    files = locate(str(write(tmp_path / "bare", config=CONFIG)), tmp_path)
    assert (files.end_tokens, files.bos_token) == ((3,), 1)


def test_a_gguf_file(tmp_path: Path) -> None:
    files = locate(str(write_gguf(tmp_path / "Tiny-1.5B.Q4_K_M.gguf")), tmp_path)
    assert (files.name, files.context_length, files.vocab_size) == ("Tiny-1.5B", 32, 5)
    assert (files.end_tokens, files.bos_token) == ((2, 4), None)


def test_a_header_is_what_the_library_reads(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", text="日本\n")
    fields = gguf.GGUFReader(path).fields
    expected = {
        name: field.contents() for name, field in fields.items() if not name.startswith("GGUF.")
    }
    assert read_header(path) == expected


def test_a_damaged_header_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf")
    whole = path.read_bytes()
    end = whole.index(b"tokenizer.ggml.add_bos_token") + 28 + 5
    for length in range(0, end - 1, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(GgufError):
            read_header(path)


@pytest.mark.parametrize(
    ("files", "text"),
    [
        pytest.param({}, "config.json", id="no-config"),
        pytest.param({"config": [1]}, "object", id="config-no-object"),
        pytest.param({"config": {"vocab_size": 5}}, "max_position", id="no-context"),
        pytest.param({"config": CONFIG | {"vocab_size": "5"}}, "vocab_size", id="bad-vocabulary"),
        *(
            pytest.param(
                {"config": CONFIG, "tokenizer": {"added_tokens": added}},
                r"tokenizer\.json: added_tokens",
                id=f"added-tokens-{added}",
            )
            for added in (
                3,
                None,
                [3],
                ["<s>"],
                [{"id": 1}],
                [{"content": [], "id": 1}],
                [["<s>", 1]],
            )
        ),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(
    tmp_path: Path, files: dict[str, Any], text: str
) -> None:
    folder = write(tmp_path / "x", **files)
    with pytest.raises(ModelFilesError, match=text) as caught:
        locate(str(folder), tmp_path)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    other = tmp_path / "weights.bin"
    other.write_bytes(b"x")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGML")
    for model in (str(tmp_path / "nothing"), "nothing", str(other), str(broken), "", "a/b/c"):
        with pytest.raises(ModelFilesError) as caught:
            locate(model, tmp_path)
        assert "\n" not in str(caught.value)


def test_a_hub_id_without_a_network_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"owner/model: cannot be fetched") as caught:
        locate("owner/model", tmp_path)
    assert "\n" not in str(caught.value)
