"""Of the prompts of conversations, a third was there before: what a cache of prefixes finds grows
with its size up to what the traffic repeats.

Source: the conversation trace of Mooncake (FAST 2025), 12,031 requests, with one hash for every 512
tokens of a prompt. 36.6 % of its blocks repeat a prefix that came before: more cannot be found.
Answers are cut to one token here, since the trace does not say which later prompt holds which
answer; blocks have 512 tokens, requests come when they came, and the worker is fast enough that
none waits.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cli.lab.errors import LabError
from cli.lab.experiment import Setting
from cli.lab.simulator import simulate_one
from cli.lab.text import bars, share, table

TITLE = "What a prefix cache finds, by its size"
TRACE = "mooncake-conversation.jsonl"
HASHED = 512  # tokens
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)  # blocks
QUICK_REQUESTS = 500
Row = Mapping[str, Any]


def simulated(setting: Setting) -> str:
    rows = read(setting.trace(TRACE))
    rows = rows[:QUICK_REQUESTS] if setting.quick else rows
    workload = setting.data_dir / "conversation.jsonl"
    workload.write_text("".join(json.dumps({**row, "output_length": 1}) + "\n" for row in rows))
    repeats, different, total = count(rows)
    sizes = [*(SIZES[:1] if setting.quick else SIZES), different + HASHED]
    found = {size: _hits(workload, size) for size in sizes}
    return _report(found, repeats / total, total)


def read(path: Path) -> list[Row]:
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise LabError(f"{path}: {error}") from None


def count(rows: Iterable[Row]) -> tuple[int, int, int]:
    """Blocks that repeat a prefix, different blocks, and all."""
    seen: set[int] = set()
    repeats = total = 0
    for row in rows:
        hashes = row["hash_ids"]
        repeats += next((i for i, h in enumerate(hashes) if h not in seen), len(hashes))
        total += len(hashes)
        seen.update(hashes)
    return repeats, len(seen), total


def _hits(workload: Path, num_blocks: int) -> float:
    case = simulate_one(
        workload=workload,
        block_size=HASHED,
        num_blocks=num_blocks,
        max_step_tokens=8192,
        step_ms=1,
    )
    hits: float = case["prefix_hits"]["block_share"]
    return hits


def _report(found: dict[int, float], most: float, total: int) -> str:
    unbounded = max(found)
    names = {size: "without end" if size == unbounded else f"{size:,}" for size in found}
    rows = [
        (names[size], "" if size == unbounded else f"{size * HASHED / 1e6:,.1f}", share(hits))
        for size, hits in found.items()
    ]
    drawn = bars([(names[size], 100 * hits) for size, hits in found.items()], " %")
    figures = table(("blocks", "million tokens", "blocks found"), rows)
    off = 100 * (found[unbounded] - most)
    return (
        f"{figures}\n\n{drawn}\n\nOf {total:,} blocks {share(most)} repeat a prefix; without end "
        f"we find {share(found[unbounded])}, {off:+.2f} points. The last token of a prompt is "
        f"always computed, and so its block.\n"
    )
