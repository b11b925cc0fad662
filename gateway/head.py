"""What frames need of a request beside its tokens: part of its entry and its journals; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

LISTS = ("usage_prompts", "stop", "hidden")


@dataclass(frozen=True, slots=True)
class Head:
    """`Submit.frame`, typed."""

    chat: bool
    model: str
    created: int  # seconds since the epoch
    num_choices: int  # of all prompts together
    n: int  # choices of each prompt
    num_prompt_tokens: int  # of all prompts together, each counted once
    stream: bool = False
    include_usage: bool = False  # a last chunk says it
    usage_prompts: tuple[int, ...] = ()  # tokens of each prompt, where every chunk says usage
    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    hidden: tuple[int, ...] = ()  # end tokens that would otherwise be shown as text
    in_turn: bool = False  # choices are shown token by token in turn, whichever is ahead

    def to_frame(self) -> dict[str, Any]:
        """Plain JSON values, for `Submit.frame`."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {name: list(values[name]) for name in LISTS}

    @classmethod
    def of(cls, frame: Mapping[str, Any]) -> Self:
        known = {name: frame[name] for name in cls.__slots__ if name in frame}
        return cls(**known | {name: tuple(known.get(name, ())) for name in LISTS})
