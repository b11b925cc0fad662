"""Tokens are those of the reference libraries, and a user's text never becomes a special one."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from common.gguf_tokenizer import build
from common.model_files import ModelFiles, ModelFilesError, locate
from common.tokenizer import SLICE, Tokenizer, TooLongError, replace
from tests.common.tiny_tokenizers import KINDS

FEW = settings(max_examples=40)
NASTY = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "|>", "<s>", "</s>", "<0x0A>"]
NASTY += ["[INST]", "<|eot_id|>", "<|end|>", "<unk>", "a", " ", "\n", "é", "😀"]
# The embedded vocabulary lacks the bytes of higher planes and of control characters.
PLANES = st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"])
TEXTS = st.lists(st.sampled_from(NASTY) | st.text(PLANES, max_size=3), max_size=8).map("".join)

# What transformers makes of them, its GGUF tokenizer repaired to cut digits one by one.
GOLDEN = [
    (
        "Hello, world! It's 12:45 on 2024-01-05, isn't it?",
        "19556 28 905 17 657 506 216 33 34 42 36 37 335 216 34 32 34 36 29 32 33 29 32 37 28 "
        "3247 982 357 47",
    ),
    (
        "  def f(x):\n\treturn x**2  # näive\n\n\n",
        "216 753 275 24 104 727 198 197 5406 1792 828 34 216 907 304 9023 404 16506",
    ),
    (
        "日本語のテキスト😀",
        "23274 115 40993 179 120 248 26453 11100 224 10391 251 10391 134 11100 226 10813 242 218",
    ),
    ("a\xa0b\r\nc   \n  d", "81 15442 82 201 198 83 333 3805 287"),
    ("¼ ½ ٣٤ Ⅷ x² ﬁ", "28151 216 16738 216 164 113 164 114 216 173 223 117 1792 19133 40367"),
    (
        "<|im_start|>not special<|im_end|>",
        "44 108 306 79 3738 108 46 1766 1767 44 108 306 79 486 108 46",
    ),
]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(locate("embedded", tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module", params=KINDS)
def tiny(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(KINDS[request.param]().library, 1000)


def text_of(tokenizer: Tokenizer, tokens: list[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, tokens)).decode()


@pytest.mark.parametrize(("text", "tokens"), GOLDEN)
def test_the_embedded_model_sees_the_tokens_of_the_reference(
    embedded: Tokenizer, text: str, tokens: str
) -> None:
    assert embedded.encode(text) == [int(token) for token in tokens.split()]


@FEW
@given(TEXTS)
def test_any_text_comes_back_from_its_tokens(embedded: Tokenizer, text: str) -> None:
    assert text_of(embedded, embedded.encode(text)) == text


@FEW
@given(TEXTS)
def test_no_text_becomes_a_special_token(tiny: Tokenizer, text: str) -> None:
    special = set(tiny.special_tokens.values())
    tokens = tiny.encode(text, add_special=False)
    assert special.isdisjoint(tokens)
    assert max(tokens, default=0) < tiny.vocab_size


@FEW
@given(TEXTS)
def test_text_comes_back_after_the_space_that_a_vocabulary_adds(tiny: Tokenizer, text: str) -> None:
    text = text.replace("▁", " ")  # they are one to these vocabularies
    assert text_of(tiny, tiny.encode(text)) in {text, " " + text}


@pytest.mark.parametrize("kind", KINDS)
@FEW
@given(text=TEXTS)
def test_special_tokens_that_are_meant_are_those_of_the_library(kind: str, text: str) -> None:
    assert both(kind).encode(text, allow_special=True) == reference(kind).encode(text).ids


@pytest.mark.parametrize("text", ["<a>", "<a>b<", "<a><a>b<<a>", "b<a>", "b<a>b<a>", "<a<a>>"])
def test_special_tokens_that_overlap_are_found_as_the_library_finds_them(text: str) -> None:
    library = Library(models.BPE({char: index for index, char in enumerate("<a>b")}, []))
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<a>", "<a>b", "b<"])
    tokenizer = Tokenizer(Library.from_str(library.to_str()), 10)
    assert tokenizer.encode(text, allow_special=True) == library.encode(text).ids


def test_a_model_gets_its_bos() -> None:
    tokenizer = Tokenizer(KINDS["llama3"]().library, 1000)
    bos = tokenizer.special_tokens["<|begin_of_text|>"]
    assert tokenizer.encode("a")[0] == bos
    assert bos not in tokenizer.encode("a", add_special=False)
    assert tokenizer.encode("") == [bos]


def test_special_tokens_have_no_text_and_others_do() -> None:
    tokenizer = Tokenizer(KINDS["llama3"]().library, 1000)
    (think,) = tokenizer.encode("<think>", add_special=False)
    assert tokenizer.token_bytes(think) == b"<think>"
    assert tokenizer.token_bytes(tokenizer.special_tokens["<|eot_id|>"]) == b""
    assert tokenizer.token_bytes(999) == tokenizer.token_bytes(-1) == b""
    assert tokenizer.token_bytes(1 << 40) == b""


def test_bytes_of_a_vocabulary_with_byte_fallback() -> None:
    tokenizer = Tokenizer(KINDS["mistral"]().library, 1000)
    tokens = tokenizer.encode("ж", add_special=False)
    assert [tokenizer.token_bytes(token) for token in tokens] == [b" ", b"\xd0", b"\xb6"]


def test_what_is_too_long_is_told_with_a_number(embedded: Tokenizer) -> None:
    text = "a b " * 50
    assert len(embedded.encode(text, max_tokens=101)) == 101
    with pytest.raises(TooLongError) as caught:
        embedded.encode(text, max_tokens=100)
    assert caught.value.num_tokens == 101


def test_what_is_hopelessly_long_is_not_even_tokenised(embedded: Tokenizer) -> None:
    with pytest.raises(TooLongError) as caught:
        embedded.encode("a" * 5_000_000, max_tokens=8191)
    assert 8191 < caught.value.num_tokens < 1_250_000


def test_long_texts_are_replaced_in_slices() -> None:
    text = "ab" * SLICE
    assert replace(text, "b", "cc") == text.replace("b", "cc")
    assert replace(text, "ba", "") == text.replace("ba", "")


def test_vocabularies_that_merge_text_into_special_tokens_are_mended() -> None:
    vocab = {text: index for index, text in enumerate(["<", "s", ">", "s>", "<s>", "a", "s>a"])}
    library = Library(models.BPE(vocab, [("s", ">"), ("<", "s>"), ("s>", "a")]))
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<s>"])
    tokenizer = Tokenizer(library, 10)
    assert tokenizer.encode("<s>as>a") == [0, 6, 6]
    assert tokenizer.encode("<s>a", allow_special=True) == [4, 5]


# --- GGUF -------------------------------------------------------------------------------------


def gguf_files(**header: Any) -> ModelFiles:
    keys = {f"tokenizer.ggml.{key}": value for key, value in header.items()}
    return ModelFiles(
        path=Path("x.gguf"),
        is_gguf=True,
        name="x",
        context_length=8,
        vocab_size=len(header["tokens"]),
        end_tokens=(),
        bos_token=header.get("bos_token_id"),
        config=keys,
    )


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
WORDS = ["▁", "a", "b", "c", "ab", "bc", "▁a", "▁ab", "cab", "<", "s", ">", "s>", "/"]
SCORES = [0.0, 0.0, 0.0, *[0.0] * 256]
SCORES += [-9, -9, -9, -9, -2, -1, -3, -6, -4, -9, -9, -9, -8, -9]
SENTENCE_PIECE = {
    "model": "llama",
    "tokens": PIECES + WORDS,
    "scores": SCORES,
    "token_type": [2, 3, 3, *[6] * 256, *[1] * len(WORDS)],
    "bos_token_id": 1,
}


def sentence_piece(text: str) -> list[int]:
    """SentencePiece's algorithm, slow and plain: join the best pair until none is left."""
    tokens, scores = SENTENCE_PIECE["tokens"], SCORES
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [
            (-scores[tokens.index(left + right)], at)
            for at, (left, right) in enumerate(itertools.pairwise(parts))
            if left + right in WORDS
        ]
        if not pairs:
            break
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    known = [[tokens.index(part)] if part in WORDS else [] for part in parts]
    return [
        token
        for ids, part in zip(known, parts, strict=True)
        for token in ids or [3 + byte for byte in part.encode()]
    ]


@FEW
@given(st.text("abc <s>/é", max_size=12).filter(bool))
@example("abc")
def test_sentence_piece_joins_by_score(text: str) -> None:
    tokenizer = Tokenizer.load(gguf_files(**SENTENCE_PIECE))
    assert tokenizer.encode(text) == [1, *sentence_piece(text)]


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"model": "gpt2", "pre": "mystery", "tokens": ["a"]}, "mystery"),
        ({"model": "t5", "tokens": ["a"]}, "t5"),
    ],
)
def test_unknown_kinds_are_refused_by_name(header: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelFilesError, match=text):
        build(gguf_files(**header))


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["don", "'t", "1", "2", "3", "4", " ", "5"]),
        ("gpt-2", ["don", "'t", "1234", " 5"]),
        ("llama-bpe", ["don", "'t", "123", "4", " ", "5"]),
        ("qwen2", ["don", "'t", "1", "2", "3", "4", " ", "5"]),
        ("default", ["don", "'", "t", "123", "4", " ", "5"]),
    ],
)
def test_text_is_cut_as_the_name_says(pre: str, pieces: list[str]) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = build(gguf_files(model="gpt2", pre=pre, tokens=alphabet, merges=[]))
    cut = library.pre_tokenizer.pre_tokenize_str("don't1234 5")
    assert [piece.replace("Ġ", " ") for piece, _ in cut] == pieces


# --- Directories ------------------------------------------------------------------------------


def directory(path: Path, tokenizer: str | None) -> ModelFiles:
    config = {"max_position_embeddings": 64, "vocab_size": 1000}
    (path / "config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        (path / "tokenizer.json").write_text(tokenizer)
    return locate(str(path), path)


def test_a_directory_is_loaded(tmp_path: Path) -> None:
    library = KINDS["llama3"]().library
    tokenizer = Tokenizer.load(directory(tmp_path, library.to_str()))
    assert tokenizer.encode("hello 12") == library.encode("hello 12").ids


@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [
        (None, "tokenizer.json"),
        ("{", "cannot be read"),
        (Library(models.WordLevel({"a": 0}, unk_token="a")).to_str(), "WordLevel"),
        (Library(models.BPE({"a": 0}, [])).to_str(), "decoder"),
    ],
)
def test_a_directory_without_a_usable_tokenizer_is_refused(
    tmp_path: Path, tokenizer: str | None, text: str
) -> None:
    with pytest.raises(ModelFilesError, match=text):
        Tokenizer.load(directory(tmp_path, tokenizer))


_made: dict[str, tuple[Tokenizer, Library]] = {}


def both(kind: str) -> Tokenizer:
    if kind not in _made:
        library = KINDS[kind]().library
        _made[kind] = Tokenizer(Library.from_str(library.to_str()), 1000), library
    return _made[kind][0]


def reference(kind: str) -> Library:
    return _made[kind][1]
