"""The page of results: parts between markers, each rewritten alone, in the order of experiments."""

import re
from pathlib import Path

HEAD = """\
# The lab

What is said of continuous batching, shown on this system: `./chairlift lab` runs the experiments
and writes this page; each figure of ours stands beside the figure of the paper that the claim is
from. Where they differ, the section says so and, as far as it is known, why.

*Simulated* is the real scheduler on a virtual clock ([simulator.md](simulator.md)): its decisions
are those of a pool, the duration of a step is a model's. *Real* is a whole pool on the machine
that is named: gateway, Redis, scheduler, worker and the built-in model, SmolLM2-135M in bfloat16
on a CPU. Words are those of [performance.md](performance.md).
"""
PART = re.compile(r"<!-- lab (\d+) (\w+): begin -->\n(.*?)<!-- lab \1 \2: end -->\n", re.DOTALL)
KINDS = ("claim", "simulated", "real")  # in this order within a section
Key = tuple[int, str]  # experiment, kind


def parse(text: str) -> dict[Key, str]:
    return {(int(number), kind): body for number, kind, body in PART.findall(text)}


def render(parts: dict[Key, str]) -> str:
    ordered = sorted(parts.items(), key=lambda item: (item[0][0], KINDS.index(item[0][1])))
    marked = (
        f"<!-- lab {number} {kind}: begin -->\n{body}<!-- lab {number} {kind}: end -->\n"
        for (number, kind), body in ordered
    )
    return "\n".join([HEAD, *marked])


def update(path: Path, new: dict[Key, str]) -> None:
    """What the page has of other experiments stays."""
    old = parse(path.read_text()) if path.exists() else {}
    path.write_text(render(old | new))
