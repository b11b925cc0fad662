"""Iterations of a real worker as text, as `./chairlift simulate --timeline` draws virtual ones."""

from collections.abc import Sequence
from typing import Any

from cli.lab.server import Entry

PREFILL, DECODE, IDLE, WAITS = "Pd-."
LEGEND = (
    "P computes its prompt, d decodes, . waits, "
    "- has a row and no tokens in this iteration; a column is an iteration"
)


def steps(timeline: Sequence[Entry]) -> list[Entry]:
    """The iterations that computed something."""
    return [entry for entry in timeline if entry["chunks"]]


def draw(timeline: Sequence[Entry]) -> str:
    """A row for each request, named 1, 2 … in the order in which they came."""
    came = [one for entry in timeline for one in entry["came"]]
    columns = steps(timeline)
    rows = []
    for number, (name, _tenant, num_prompt, *_) in enumerate(came, 1):
        marks = _marks(name, num_prompt, columns)
        rows.append(f"{number} {marks.rstrip()}")
    return "\n".join(rows)


def _marks(name: str, num_prompt: int, columns: Sequence[Entry]) -> str:
    shares = [_tokens(entry, name) for entry in columns]
    last = max((i for i, count in enumerate(shares) if count), default=-1)
    done, marks = 0, ""
    for i, count in enumerate(shares):
        if i > last:
            break
        if not count:
            marks += IDLE if done else WAITS
        else:
            marks += PREFILL if done < num_prompt else DECODE
        done += count
    return marks


def _tokens(entry: Entry, name: str) -> int:
    found: dict[str, Any] = dict(entry["chunks"])
    return int(found.get(name, 0))
