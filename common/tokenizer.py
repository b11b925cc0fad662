"""Text to token ids and back, over the `tokenizers` library.

What a user wrote never becomes a special token: the library runs with special tokens switched
off. Where a special token is meant (a chat template's own markers), its text is replaced by a
*twin* before encoding: an added token with the same flags and a text that nobody can guess, whose
id is then exchanged for the real one. So text around markers is cut, normalised and merged as the
library does it with special tokens switched on.
"""

import json
import secrets
from collections.abc import Iterator
from typing import Self

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Library

from common.gguf_tokenizer import build
from common.model_files import ModelFiles, ModelFilesError
from common.token_bytes import token_bytes_table

SLICE = 1 << 18  # characters
SHRINK = 4  # a normaliser makes at most so many characters one


class TooLongError(Exception):
    """The text has more tokens than were allowed."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(f"at least {num_tokens} tokens")
        self.num_tokens = num_tokens  # at least


class Tokenizer:
    """Thread safe; encoding releases the interpreter's lock."""

    def __init__(self, library: Library, vocab_size: int) -> None:
        """Takes `library` over; `vocab_size` is the model's, at least the tokenizer's."""
        self.vocab_size = vocab_size
        self._bytes = token_bytes_table(library, vocab_size)
        self._longest = max(map(len, self._bytes))
        library.encode_special_tokens = True
        library.no_truncation()
        library.no_padding()
        added = library.get_added_tokens_decoder()
        # One of a single character could not be told from text: it is never found.
        specials = {
            entry.content: (id_, entry)
            for id_, entry in added.items()
            if entry.special and len(entry.content) > 1
        }
        self.special_tokens = {text: id_ for text, (id_, _) in specials.items()}
        self._library = _without_special_merges(library, self.special_tokens)
        self._twins = {text: unguessable() for text in self.special_tokens}
        self._library.add_tokens(
            [_twin(entry, self._twins[text]) for text, (_, entry) in specials.items()]
        )
        self._real_ids = {
            self._library.token_to_id(twin): self.special_tokens[text]
            for text, twin in self._twins.items()
        }

    @classmethod
    def load(cls, files: ModelFiles) -> Self:
        """ModelFilesError if there is no tokenizer, or none of a kind that is known here."""
        if files.is_gguf:
            return cls(build(files), files.vocab_size)
        path = files.path / "tokenizer.json"
        if not path.is_file():
            raise ModelFilesError(f"{files.path}: has no tokenizer.json")
        try:
            library = Library.from_file(str(path))
        except Exception as error:  # noqa: BLE001  the library raises nothing narrower
            raise ModelFilesError(f"{path}: cannot be read ({error})") from None
        if not isinstance(library.model, models.BPE):
            kind = type(library.model).__name__
            raise ModelFilesError(f"{path}: tokenizers of kind {kind} are not supported")
        return cls(library, files.vocab_size)

    def encode(
        self,
        text: str,
        *,
        allow_special: bool = False,
        add_special: bool = True,
        max_tokens: int | None = None,
    ) -> list[int]:
        """Token ids of `text`, which must be valid Unicode (no surrogates).

        `allow_special`: special tokens' texts mean these tokens; only for text that no user wrote.
        `add_special`: with what the model wants around a text (its BOS).
        TooLongError if there would be more than `max_tokens`.
        """
        if allow_special:
            return self.encode_marked(text, "", add_special=add_special, max_tokens=max_tokens)
        return self._encode(text, add_special, max_tokens)

    def encode_marked(
        self, text: str, mark: str, *, add_special: bool = False, max_tokens: int | None = None
    ) -> list[int]:
        """As `encode` with `allow_special`; `mark` is taken out after special tokens were found.

        So a mark inside a special token's text keeps it text.
        """
        pieces, at = [], 0
        for start, special in self.find_special(text):
            pieces += [text[at:start], self._twins[special]]
            at = start + len(special)
        pieces.append(text[at:])
        joined = "".join(pieces)
        joined = replace(joined, mark, "") if mark else joined
        ids = self._encode(joined, add_special, max_tokens)
        return [self._real_ids.get(token, token) for token in ids]

    def _encode(self, text: str, add_special: bool, max_tokens: int | None) -> list[int]:
        self.check_length(len(text), max_tokens)
        # Unlike `encode`, the batch call gives the interpreter's lock away.
        (encoding,) = self._library.encode_batch_fast([text], add_special_tokens=add_special)
        if max_tokens is not None and len(encoding) > max_tokens:
            raise TooLongError(len(encoding))
        return encoding.ids

    def check_length(self, num_chars: int, max_tokens: int | None) -> None:
        """TooLongError for a text that cannot have so few tokens: tells hopeless cases at once."""
        least = num_chars // (self._longest * SHRINK)
        if max_tokens is not None and least > max_tokens:
            raise TooLongError(least)

    def find_special(self, text: str) -> Iterator[tuple[int, str]]:
        """(start, special token) for each one in `text`: leftmost, then longest, no overlaps.

        Searched one by one: a regular expression would hold the interpreter's lock for all of a
        long text.
        """
        found = sorted(
            (start, -len(special), special)
            for special in self.special_tokens
            for start in _occurrences(text, special)
        )
        end = 0
        for start, _, special in found:
            if start >= end:
                yield start, special
                end = start + len(special)

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to a text: b"" for special tokens and ids that are no token."""
        return self._bytes[token] if 0 <= token < len(self._bytes) else b""


def replace(text: str, part: str, by: str) -> str:
    """As str.replace, which would hold the interpreter's lock for all of a long text."""
    if len(part) > 1 or len(text) <= SLICE:
        return text.replace(part, by)
    slices = [text[start : start + SLICE] for start in range(0, len(text), SLICE)]
    return "".join([piece.replace(part, by) for piece in slices])


def unguessable() -> str:
    """Four private-use characters, 64 bits, that no text contains by chance or by design."""
    return "".join(chr(0xF0000 + secrets.randbelow(0xFFFD)) for _ in range(4))


def _occurrences(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _twin(entry: AddedToken, text: str) -> AddedToken:
    return AddedToken(
        text,
        single_word=entry.single_word,
        lstrip=entry.lstrip,
        rstrip=entry.rstrip,
        normalized=entry.normalized,
        special=False,
    )


def _without_special_merges(library: Library, special: dict[str, int]) -> Library:
    """Some vocabularies merge plain text into special tokens: the same without these merges."""
    ids = set(special.values())
    if all(ids.isdisjoint(_plain(library, text)) for text in special):
        return library
    state = json.loads(library.to_str())
    merges = state["model"]["merges"]
    state["model"]["merges"] = [
        merge
        for merge in merges
        if "".join(merge.split(" ") if isinstance(merge, str) else merge) not in special
    ]
    state["model"]["ignore_merges"] = False
    cleaned = Library.from_str(json.dumps(state))
    cleaned.encode_special_tokens = True
    return cleaned


def _plain(library: Library, text: str) -> list[int]:
    """Ids of `text` by itself and inside a word."""
    texts = [text, f"a{text}a"]
    return [id_ for one in texts for id_ in library.encode(one, add_special_tokens=False).ids]
