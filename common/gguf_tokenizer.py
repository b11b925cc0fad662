"""A tokenizer of the `tokenizers` library from the metadata of a GGUF file.

`tokenizer.ggml.pre` names how text is cut before merging. A name that is not known here is
refused: cut otherwise than in training, a prompt would be understood worse, and nobody would know.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from common.model_files import ModelFiles, ModelFilesError
from common.token_bytes import SPACE

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # of tokenizer.ggml.token_type

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"
PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"
MODERN = (  # %s: how many digits stay together
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS: dict[str, tuple[str, ...]] = {  # one after the other, each on the pieces of the last
    "default": (PUNCTUATION, GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (GPT2,),
    "phi-2": (GPT2,),
    "smollm": (DIGIT, GPT2),
    "starcoder": (DIGIT, GPT2),
    "refact": (DIGIT, GPT2),
    "llama-bpe": (MODERN % "{1,3}",),
    "llama3": (MODERN % "{1,3}",),
    "llama-v3": (MODERN % "{1,3}",),
    "qwen2": (MODERN % "",),
    "deepseek-r1-qwen": (MODERN % "",),
}
LLAMA3 = {"llama-bpe", "llama3", "llama-v3"}
COMPOSED = {"qwen2", "deepseek-r1-qwen"}  # trained on text in NFC


def build(files: ModelFiles) -> Library:
    """ModelFilesError if the file's kind of tokenizer is not known here."""
    header = files.config
    kind = header.get("tokenizer.ggml.model")
    if kind == "gpt2":
        library, adds_bos = _byte_level(files)
    elif kind == "llama":
        library, adds_bos = _sentence_piece(header), True
    else:
        raise ModelFilesError(f"{files.path}: its tokenizer {kind!r} is not supported")
    _add_tokens(library, header)
    if files.bos_token is not None and header.get("tokenizer.ggml.add_bos_token", adds_bos):
        text = header["tokenizer.ggml.tokens"][files.bos_token]
        library.post_processor = processors.TemplateProcessing(
            single=[text, "$A"], special_tokens=[(text, files.bos_token)]
        )
    return library


def _byte_level(files: ModelFiles) -> tuple[Library, bool]:
    """The tokenizer, and whether its models want a BOS unless they say otherwise."""
    header = files.config
    pre = header.get("tokenizer.ggml.pre", "default")
    if pre not in PATTERNS:
        raise ModelFilesError(
            f"{files.path}: its pre-tokenizer {pre!r} is not supported "
            f"(known: {', '.join(sorted(PATTERNS))})"
        )
    merges = [tuple(merge.split(" ")) for merge in header.get("tokenizer.ggml.merges", [])]
    library = Library(models.BPE(_vocab(header), merges, ignore_merges=pre in LLAMA3))
    if pre in COMPOSED:
        library.normalizer = normalizers.NFC()
    cuts: list[Any] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in PATTERNS[pre]
    ]
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    library.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    library.decoder = decoders.ByteLevel()
    return library, pre in LLAMA3


def _sentence_piece(header: Mapping[str, Any]) -> Library:
    unknown = header.get("tokenizer.ggml.unknown_token_id", 0)
    model = models.BPE(
        _vocab(header),
        _merges_by_score(header),
        unk_token=header["tokenizer.ggml.tokens"][unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    library = Library(model)
    steps: list[Any] = [normalizers.Replace(" ", SPACE)]
    if header.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(SPACE))
    library.normalizer = normalizers.Sequence(steps)
    library.decoder = decoders.ByteFallback()
    return library


def _merges_by_score(header: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, best score first."""
    vocab = _vocab(header)
    scores = header.get("tokenizer.ggml.scores", [])
    kinds = header.get("tokenizer.ggml.token_type", [])
    ranked = []
    for text, token in vocab.items():
        if kinds[token] != NORMAL:
            continue
        for cut in range(1, len(text)):
            left, right = vocab.get(text[:cut]), vocab.get(text[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[token], left, right, text, cut))
    ranked.sort()
    return [(text[:cut], text[cut:]) for *_, text, cut in ranked]


def _vocab(header: Mapping[str, Any]) -> dict[str, int]:
    tokens: Sequence[str] = header["tokenizer.ggml.tokens"]
    return {text: token for token, text in enumerate(tokens)}


def _add_tokens(library: Library, header: Mapping[str, Any]) -> None:
    """Control tokens as special ones; user-defined ones are found in any text."""
    tokens = header["tokenizer.ggml.tokens"]
    kinds = header.get("tokenizer.ggml.token_type", [])
    for text, kind in zip(tokens, kinds, strict=False):
        if kind == CONTROL:
            library.add_special_tokens([AddedToken(text, normalized=False, special=True)])
        elif kind == USER_DEFINED:
            library.add_tokens([AddedToken(text, normalized=False)])
