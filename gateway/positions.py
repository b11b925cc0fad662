"""Where a client is in a stream: the `id:` of the last frame that it has, written and read; pure.

`12`: the text of twelve tokens was shown. `12.end`: and how the choice ended. Several choices have
a part each, `5,3.end`. `12.end,usage`: the usage too. No two frames of a stream share an id.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import BadRequestError

HEADER = "Last-Event-ID"
END, USAGE = ".end", "usage"
PART = re.compile(r"([0-9]{1,12})(\.end)?")


@dataclass(frozen=True, slots=True)
class Position:
    """Behind the frames that a client has."""

    num_tokens: tuple[int, ...]  # by choice, whose text it has
    has_end: tuple[bool, ...]  # by choice
    has_usage: bool = False

    @classmethod
    def start(cls, num_choices: int) -> "Position":
        return cls((0,) * num_choices, (False,) * num_choices)


def written(num_tokens: Sequence[int], has_end: Sequence[bool], *, has_usage: bool = False) -> str:
    parts = [f"{n}{END}" if ended else str(n) for n, ended in zip(num_tokens, has_end, strict=True)]
    return ",".join([*parts, USAGE] if has_usage else parts)


def read(text: str, num_choices: int) -> Position:
    """The position of an id; without one, the start. BadRequestError."""
    if not text:
        return Position.start(num_choices)
    parts = [part.strip() for part in text.split(",")]
    has_usage = parts[-1] == USAGE
    found = [PART.fullmatch(part) for part in parts[: len(parts) - has_usage]]
    if len(found) != num_choices or not all(found):
        expected = "a count of tokens" + f" for each of {num_choices} choices" * (num_choices > 1)
        raise BadRequestError(
            f"Invalid '{HEADER}': expected the `id` of a frame of this stream, {expected}, "
            f"but got {text[:100]!r}.",
            HEADER,
            "invalid_event_id",
        )
    matches = [match for match in found if match]
    return Position(
        tuple(int(match[1]) for match in matches),
        tuple(match[2] is not None for match in matches),
        has_usage,
    )
