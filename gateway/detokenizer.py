"""Tokens to text as they come: incomplete UTF-8 and possible stop strings held back; pure.

What has been shown after n tokens depends on these tokens only, not on how they arrived.
"""

import codecs
from collections.abc import Callable, Sequence


class StopString:
    """One stop string, searched character by character (Knuth, Morris, Pratt).

    Invariant: `matched` is the length of the longest proper prefix of the stop string that the
    text seen so far ends with.
    """

    __slots__ = ("borders", "matched", "text")

    def __init__(self, text: str) -> None:
        assert text
        self.text = text
        self.matched = 0
        self.borders = self._borders(text)

    @staticmethod
    def _borders(text: str) -> list[int]:
        """borders[i]: length of the longest proper prefix of text[:i] that it also ends with."""
        borders = [0, 0]
        length = 0
        for char in text[1:]:
            while length and text[length] != char:
                length = borders[length]
            length += text[length] == char
            borders.append(length)
        return borders

    def ends_at(self, char: str) -> bool:
        """Take one more character: does the stop string end with it?"""
        text, matched = self.text, self.matched
        while matched and text[matched] != char:
            matched = self.borders[matched]
        matched += text[matched] == char
        found = matched == len(text)
        self.matched = self.borders[matched] if found else matched
        return found


class Detokenizer:
    """The text of one choice.

    A stop string counts where it ends; of several that end together the longest is cut. While
    `min_tokens` are not passed, none counts.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        stop: Sequence[str] = (),
        *,
        min_tokens: int = 0,
        hidden: frozenset[int] = frozenset(),
    ) -> None:
        """`hidden`: tokens that end the answer and are not part of its text."""
        self.num_tokens = 0  # taken; stands still once a stop string was found
        self.stopped: int | None = None  # tokens up to the end of the stop string found
        self._token_bytes = token_bytes
        self._stops = [StopString(text) for text in stop]
        self._beginnings = frozenset(text[0] for text in stop)
        self._min_tokens = min_tokens
        self._hidden = hidden
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""  # the text's end that may be the beginning of a stop string

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that can be shown now; "" after a stop string."""
        if len(tokens) == 1 and not self._stops:
            return self._decode(self._take(tokens[0]))
        shown = ""
        for token in tokens:
            if self.stopped is not None:
                break
            shown += self._sift(self._decode(self._take(token)))
        return shown

    def finish(self) -> str:
        """What is still held: the answer ends here."""
        if self.stopped is not None:
            return ""
        shown = self._sift(self._decode(b"", True))
        shown, self._held = shown + self._held, ""
        return shown

    def _take(self, token: int) -> bytes:
        self.num_tokens += 1
        return b"" if token in self._hidden else self._token_bytes(token)

    def _sift(self, text: str) -> str:
        """Add `text` to what is held; give back what is certain, up to a stop string."""
        if not self._held and self._beginnings.isdisjoint(text):
            return text
        pending = self._held + text
        for end, char in enumerate(text, len(self._held) + 1):
            found = [len(stop.text) for stop in self._stops if stop.ends_at(char)]
            if found and self.num_tokens > self._min_tokens:
                self.stopped = self.num_tokens
                self._held = ""
                return pending[: end - max(found)]
        certain = len(pending) - max(stop.matched for stop in self._stops)
        self._held = pending[certain:]
        return pending[:certain]
