"""Prompts as requests carry them: random, of exact length in token ids or about so in words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from cli.bench.options import Options

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "life", "child", "world")
KEPT_PARTS = 4096  # parts that prompts share, not to be drawn again


@dataclass(frozen=True)
class Part:
    """Tokens of a prompt; those of another part with the same seed begin alike."""

    seed: str
    tokens: int
    is_shared: bool = False


def prompt_of(
    options: Options, parts: Sequence[Part], history: Iterable[tuple[str, str]] = ()
) -> dict[str, object]:
    """The fields of a request. `history`: what was asked and answered before, as text."""
    if not options.is_text:
        vocabulary = range(*options.vocabulary)
        return {"prompt": [token for part in parts for token in _drawn(part, vocabulary)]}
    text = text_of(parts)
    if options.endpoint == "completions":
        return {"prompt": "".join(f"{asked}{answer}\n" for asked, answer in history) + text}
    messages = []
    for asked, answer in history:
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": answer})
    return {"messages": [*messages, {"role": "user", "content": text}]}


def text_of(parts: Iterable[Part]) -> str:
    return " ".join(WORDS[index] for part in parts for index in _drawn(part, range(len(WORDS))))


def _drawn(part: Part, source: range) -> Sequence[int]:
    return (_kept if part.is_shared else _draw)(part.seed, part.tokens, source)


def _draw(seed: str, count: int, source: range) -> Sequence[int]:
    return Random(seed).choices(source, k=count)


_kept = lru_cache(KEPT_PARTS)(_draw)
