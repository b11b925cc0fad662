"""The embedded model as a directory is the same model: to our loader, and in its tokens."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer as Library

from common.chat_template import ChatTemplate
from common.model_files import EMBEDDED, ModelFiles, locate
from common.tokenizer import Tokenizer
from gpu_worker.ops import torch_ops
from gpu_worker.weights import load_model, open_weights
from tests.bench.peers_model import write_directory
from tests.bench.perplexity import inputs_of

CPU = torch.device("cpu")
TEXT = "In 1905 Albert Einstein wrote 4 papers; the 3rd one's title says"


@pytest.fixture(scope="module")
def gguf() -> ModelFiles:
    return locate(EMBEDDED, Path())


@pytest.fixture(scope="module")
def directory(gguf: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelFiles]:
    """A quarter of a gigabyte, which is not left behind."""
    folder = tmp_path_factory.mktemp("peers") / "model"
    write_directory(gguf.path, folder)
    yield locate(str(folder), Path())
    shutil.rmtree(folder.parent)


def test_it_has_what_readers_ask_for(directory: ModelFiles, gguf: ModelFiles) -> None:
    names = {path.name for path in directory.path.parent.rglob("*") if path.is_file()}
    configs = {"config.json", "generation_config.json", "tokenizer_config.json"}
    assert names == {"model.safetensors", "tokenizer.json", *configs}
    tensors = load_file(directory.path / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    said = (directory.context_length, directory.vocab_size, directory.end_tokens)
    assert said == (gguf.context_length, gguf.vocab_size, gguf.end_tokens)
    assert directory.bos_token == gguf.bos_token


def test_texts_have_the_same_tokens(directory: ModelFiles, gguf: ModelFiles) -> None:
    ours = Tokenizer.load(gguf)
    plain = Library.from_file(str(directory.path / "tokenizer.json"))
    for text in (TEXT, "12345 x²\n\n  äöü", "don't 😀"):
        tokens = ours.encode(text)
        assert Tokenizer.load(directory).encode(text) == tokens
        assert plain.encode(text).ids == tokens
        assert plain.decode(tokens) == text


def test_a_conversation_has_the_same_tokens(directory: ModelFiles, gguf: ModelFiles) -> None:
    messages = [{"role": "user", "content": "What is a chairlift?"}]
    first, second = (
        ChatTemplate.load(each).encode(messages, Tokenizer.load(each)) for each in (gguf, directory)
    )
    assert first == second


@torch.inference_mode()
def logits(files: ModelFiles) -> torch.Tensor:
    """[N, V] behind each token of the text, as the worker would have them in bfloat16."""
    model = load_model(open_weights(files.path), torch_ops(), torch.bfloat16, CPU, 64)
    tokens = torch.tensor(Tokenizer.load(files).encode(TEXT))
    return model.forward(*inputs_of(model, tokens))


def test_it_answers_the_same(directory: ModelFiles, gguf: ModelFiles) -> None:
    """Greedy answers, since every bit of what tokens are chosen by is the same."""
    expected, found = logits(gguf), logits(directory)
    assert torch.equal(found.argmax(1), expected.argmax(1))
    assert torch.equal(found, expected)
    assert len(set(found.argmax(1).tolist())) > 10  # no model that says one thing always
