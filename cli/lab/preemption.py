"""When the cache runs short, somebody steps back. Computing its tokens again costs arithmetic;
moving them to host memory and back costs the bytes of K and V, by what the bus gives. Both grow
with the context, so that neither wins by length alone: it is the device and the model that decide,
and how well the transfers use the bus.

Source: vLLM (SOSP 2023), section 7.3: swapping is slower where blocks are small, since many small
transfers use little of the bus, and faster where they are large; recomputing costs the same
always; at 16 to 64 tokens a block both are comparable (OPT-13B on an A100). The simulator knows no
single transfers: their cost is shown as a bus that gives less. 48 requests at once, 12 seats,
answers of 256 tokens; the cache has room for 12 prompts and 64 tokens of each answer. What
swapping takes on this project's own CPU worker, `python -m tests.bench.swap` measures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cli.lab.devices import A10G_7B, H200_8B, Roofline
from cli.lab.experiment import Setting
from cli.lab.simulator import Figures, Settings, simulate
from cli.lab.text import number, table

TITLE = "Computing again against swapping, over the context"
CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
MODELS = (A10G_7B, H200_8B)
SHARES = (1.0, 0.25, 0.0625)  # of the bus, that transfers reach
BLOCK = 16
TOGETHER = 12
REQUESTS = 48
ANSWER = 256
EQUAL = 0.005


@dataclass(frozen=True)
class Row:
    context: int
    enough: float  # seconds, in a cache that never runs short
    recompute: float  # seconds
    swaps: Sequence[float]  # seconds, for each share of the bus
    preemptions: int

    @property
    def winners(self) -> list[str]:
        return [winner(self.recompute, swap) for swap in self.swaps]


def winner(recompute: float, swap: float) -> str:
    if abs(recompute / swap - 1) < EQUAL:
        return "equal"
    return "recompute" if recompute < swap else "swap"


def simulated(setting: Setting) -> str:
    contexts = CONTEXTS[:2] if setting.quick else CONTEXTS
    return "\n\n".join(
        _report(model, [_measure(setting, model, context) for context in contexts])
        for model in MODELS
    )


def _measure(setting: Setting, model: Roofline, context: int) -> Row:
    cost = model.write(setting.data_dir / "cost.json")
    settings: Settings = {
        "cost": cost,
        "requests": REQUESTS,
        "arrivals": "even",
        "rate": 1e6,
        "prompt_tokens": context,
        "output_tokens": ANSWER,
        "block_size": BLOCK,
        "prefix_cache": "off",
        "max_running": TOGETHER,
    }
    few = TOGETHER * (context + ANSWER // 4) // BLOCK
    cases: dict[str, Settings] = {
        "enough": {"num_blocks": TOGETHER * (context + ANSWER + BLOCK)},
        "recompute": {"num_blocks": few, "preemption": "recompute"},
    }
    for i, share in enumerate(SHARES):
        bus = model.device["host_bandwidth"] * share
        slower = model.write(setting.data_dir / f"cost{i}.json", host_bandwidth=bus)
        swap = {"preemption": "swap", "num_host_blocks": 10 * few}
        cases[f"swap{i}"] = {"num_blocks": few, "cost": slower, **swap}
    enough, recompute, *swaps = simulate(settings, cases).values()
    seconds = [case["seconds"] for case in swaps]
    return Row(context, enough["seconds"], recompute["seconds"], seconds, _count(recompute))


def _count(case: Figures) -> int:
    return sum(case["preemptions"].values())


def _report(model: Roofline, rows: Sequence[Row]) -> str:
    bus = [f"{model.device['host_bandwidth'] * share / 1e9:g} GB/s" for share in SHARES]
    heads = ["prompt", "cache that lasts, s", "preemptions", "recompute, s"]
    heads += [f"swap at {speed}, s" for speed in bus] + ["faster, by speed"]
    cells = [
        (
            f"{row.context:,}",
            number(row.enough),
            row.preemptions,
            number(row.recompute),
            *map(number, row.swaps),
            ", ".join(row.winners),
        )
        for row in rows
    ]
    return f"{model.words}:\n\n{table(heads, cells)}\n"
