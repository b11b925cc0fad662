"""The exact bytes of every token of a vocabulary, as its decoder would write them."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tokenizers import Tokenizer as Library

from common.model_files import ModelFilesError

SPACE = "\u2581"  # stands for a space in SentencePiece vocabularies
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes_table(library: Library, vocab_size: int) -> list[bytes]:
    """Indexed by token id; b"" for special tokens and for ids that are no token."""
    added = library.get_added_tokens_decoder()
    vocab = library.get_vocab(with_added_tokens=False)
    size = max(vocab_size, 1 + max(vocab.values(), default=0), 1 + max(added, default=0))
    table = [b""] * size
    to_bytes = _writer(library)
    for text, token in vocab.items():
        table[token] = to_bytes(text)
    for token, entry in added.items():
        table[token] = b"" if entry.special else entry.content.encode()
    return table


def _writer(library: Library) -> Callable[[str], bytes]:
    """How this vocabulary writes bytes: mapped to printable characters, or as `<0x0A>`."""
    state = json.loads(library.decoder.__getstate__()) if library.decoder else {}
    kinds = set(_kinds(state))
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds & {"ByteFallback", "Metaspace"}:
        return _sentence_piece
    raise ModelFilesError(f"this kind of tokenizer is not supported (decoder: {sorted(kinds)})")


def _kinds(decoder: dict[str, Any]) -> Iterator[str]:
    yield decoder.get("type", "none")
    for part in decoder.get("decoders", []):
        yield from _kinds(part)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the others for what follows U+00FF."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


ALPHABET = _byte_alphabet()


def _byte_level(text: str) -> bytes:
    try:
        return bytes([ALPHABET[char] for char in text])
    except KeyError:  # not written in the alphabet: the text itself
        return text.encode()


def _sentence_piece(text: str) -> bytes:
    if byte := BYTE.fullmatch(text):
        return bytes([int(byte[1], 16)])
    return text.replace(SPACE, " ").encode()
