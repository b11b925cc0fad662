"""When the cache runs short, somebody steps back. Computing its tokens again costs arithmetic,
which grows with its context; moving them to host memory and back costs bandwidth, which grows too.
Which is cheaper depends on the device and the model.

Source: vLLM (SOSP 2023), section 7.3: recomputing never costs more than 20 % above swapping, and
less where blocks are small, since many small transfers use little of the bus; at 16 to 64 tokens a
block both are comparable (OPT-13B on an A100). Here a transfer costs its bytes alone, so that
swapping looks better than it is with small blocks. 48 requests at once, answers of 256 tokens; the
cache has room for the prompts of 12 and a little.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cli.lab.experiment import Setting
from cli.lab.simulator import Settings, simulate
from cli.lab.text import number, table

TITLE = "Computing again against swapping, over the context"
CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
MODELS = {
    "a10g-7b": "Llama 2 7B on an A10G, 0.5 MiB a token, 32 GB/s to the host",
    "h200-8b": "Llama 3 8B on an H200, 0.125 MiB a token, 64 GB/s",
}
BLOCK = 16
TOGETHER = 12
REQUESTS = 48
ANSWER = 256


@dataclass(frozen=True)
class Row:
    context: int
    enough: float  # seconds, in a cache that never runs short
    recompute: float  # seconds
    swap: float
    recomputed: int  # preemptions
    swapped: int

    @property
    def winner(self) -> str:
        if abs(self.recompute / self.swap - 1) < 0.01:
            return "equal"
        return "recompute" if self.recompute < self.swap else "swap"


def simulated(setting: Setting) -> str:
    contexts = CONTEXTS[:2] if setting.quick else CONTEXTS
    parts = []
    for model, words in MODELS.items():
        parts.append(_report(words, [_measure(model, context) for context in contexts]))
    return "\n\n".join(parts) + "\n"


def _measure(model: str, context: int) -> Row:
    few = TOGETHER * (context + ANSWER // 4) // BLOCK
    settings: Settings = {
        "cost": model,
        "requests": REQUESTS,
        "arrivals": "even",
        "rate": 1e6,
        "prompt_tokens": context,
        "output_tokens": ANSWER,
        "block_size": BLOCK,
        "prefix_cache": "off",
        "max_running": TOGETHER,
    }
    cases: dict[str, Settings] = {
        "enough": {"num_blocks": TOGETHER * (context + ANSWER + BLOCK)},
        "recompute": {"num_blocks": few, "preemption": "recompute"},
        "swap": {"num_blocks": few, "preemption": "swap", "num_host_blocks": 10 * few},
    }
    found = simulate(settings, cases)
    seconds = {name: case["seconds"] for name, case in found.items()}
    preempted = {name: sum(case["preemptions"].values()) for name, case in found.items()}
    return Row(
        context,
        seconds["enough"],
        seconds["recompute"],
        seconds["swap"],
        preempted["recompute"],
        preempted["swap"],
    )


def _report(words: str, rows: Sequence[Row]) -> str:
    heads = ("prompt", "cache that lasts, s", "recompute, s", "times", "swap, s", "times", "faster")
    cells = [
        (
            f"{row.context:,}",
            number(row.enough),
            number(row.recompute),
            row.recomputed,
            number(row.swap),
            row.swapped,
            row.winner,
        )
        for row in rows
    ]
    return f"{words}:\n\n{table(heads, cells)}"
