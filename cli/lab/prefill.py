"""A long prompt that is computed whole stops everybody who decodes. In chunks beside them it
delays each token a little, and its own first token somewhat; how much is a choice: the budget of a
step, or directly a bound on the time between two tokens.

Source: Sarathi-Serve (OSDI 2024), chunked prefills and stall-free schedules: 2.6 times the load
within the same latency bounds for Mistral-7B on an A100, up to 5.6 times for Falcon-180B, against
vLLM of that time. Here: eight streams decode, and long prompts come at even distances. ITL is the
time between two tokens of the eight; TTFT is that of the long prompts; tokens/s counts prompts and
answers. *Whole* computes the prompt in one step beside those who decode, as Orca did; *exclusive*
in a step of its own, as vLLM did then.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cli.bench.report import percentile
from cli.bench.stream import TokenStream
from cli.lab.errors import LabError
from cli.lab.experiment import Setting
from cli.lab.records import mean, records
from cli.lab.server import Pool, up
from cli.lab.simulator import Figures, simulate
from cli.lab.streams import Client, new_stream, prompt, run
from cli.lab.text import milliseconds, number, table

TITLE = "Prompts in chunks: what the others' tokens wait for"
STREAMS = 8
SHORT_PROMPT = 64
STREAM_TOKENS = 1900  # more than any stream gets to
SETTLED = 16  # tokens of each stream, before it counts
TARGET_MS = 100
BOUND = 0.110  # seconds: within which the 99th percentile shall stay
NEAR = 0.9  # of the throughput of the best fixed budget
SIMULATED_LONG = 8_000
SIMULATED_EVERY = 0.4  # seconds
SIMULATED_TARGET_MS = 25
REAL_LONG = 1_500
REAL_EVERY = 2.0  # seconds
REAL_PROMPTS = 12
BUDGETS = (64, 128, 192, 256, 512)  # of real steps
Settings = dict[str, object]


@dataclass(frozen=True)
class Seen:
    name: str
    itl: Sequence[float]  # of the streams; seconds, ranked
    ttft: float  # of long prompts, mean
    tokens_per_second: float  # of prompts and answers
    is_fixed: bool = False  # a budget of tokens

    @property
    def p99(self) -> float:
        return percentile(self.itl, 99)


def simulated(setting: Setting) -> str:
    count = 3 if setting.quick else 20
    path = setting.data_dir / "prompts.csv"
    lines = [f"0,streams,{SHORT_PROMPT},1000"] * STREAMS
    lines += [f"{0.5 + i * SIMULATED_EVERY},long,{SIMULATED_LONG},1" for i in range(count)]
    path.write_text("arrival_s,tenant,prompt_tokens,output_tokens\n" + "\n".join(lines) + "\n")
    whole = 2 * SIMULATED_LONG
    cases: dict[str, Settings] = {
        f"chunks, {budget:,} tokens a step": {"max_step_tokens": budget}
        for budget in (256, 512, 1024, 2048)
    }
    cases |= {
        "whole": {"prefill": "whole", "max_step_tokens": whole},
        "exclusive": {"prefill": "exclusive", "max_step_tokens": whole},
        f"chunks, {SIMULATED_TARGET_MS} ms a token": {
            "itl_target_ms": SIMULATED_TARGET_MS,
            "max_step_tokens": 2048,
        },
    }
    settings = {"workload": path, "cost": "h200-8b", "prefix_cache": "off"}
    named = {f"c{i}": case for i, case in enumerate(cases.values())}
    found = simulate(settings, named)
    rows = [_row(name, case) for name, case in zip(cases, found.values(), strict=True)]
    words = (
        f"Llama 3 8B on an H200, by roofline; a prompt of {SIMULATED_LONG:,} tokens every "
        f"{SIMULATED_EVERY} s."
    )
    return f"{words}\n\n{table(HEADS, rows)}\n"


HEADS = ("prefill", "ITL p50, ms", "p99", "longest", "TTFT mean, ms", "tokens/s")


def _row(name: str, case: Figures) -> tuple[str, ...]:
    itl = case["itl_seconds"]  # the long ones have one token, and no gap
    ttft = mean(one.ttft for one in records(case) if one.tenant == "long")
    times = (itl["p50"], itl["p99"], itl["max"], ttft)
    return (name, *map(milliseconds, times), number(case["tokens_per_second"]))


def real(setting: Setting) -> str:
    count = 2 if setting.quick else REAL_PROMPTS
    most = 2048  # a stream fits whole, as it must where prompts are not cut
    cases: dict[str, Settings] = {
        f"chunks, {budget} tokens a step": {"max_step_tokens": budget}
        for budget in (BUDGETS[2:3] if setting.quick else BUDGETS)
    }
    fixed = set(cases)
    cases |= {
        "whole": {"prefill": "whole", "max_step_tokens": most},
        "exclusive": {"prefill": "exclusive", "max_step_tokens": most},
        f"chunks, {TARGET_MS} ms a token": {"itl_target_ms": TARGET_MS, "max_step_tokens": 512},
    }
    seen = []
    for name, case in cases.items():
        with up(setting.data_dir, **case) as pool:
            seen.append(run(_measure(pool, name, count, is_fixed=name in fixed)))
    return _report(seen)


async def _measure(pool: Pool, name: str, count: int, *, is_fixed: bool) -> Seen:
    """One long prompt first that does not count: the scheduler learns what steps take."""
    client = await Client.connect(pool.url)
    streams = [new_stream() for _ in range(STREAMS)]
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(client.ask(prompt(f"short {i}", SHORT_PROMPT), STREAM_TOKENS, stream))
            for i, stream in enumerate(streams)
        ]
        while any(len(stream.times) < SETTLED for stream in streams):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await client.ask(prompt("first", REAL_LONG), 1, new_stream())
        began = time.perf_counter()
        async with asyncio.TaskGroup() as arrivals:
            asked = []
            for i in range(count):
                asked.append(arrivals.create_task(_first_token(client, i)))
                await asyncio.sleep(began + (i + 1) * REAL_EVERY - time.perf_counter())
        ended = time.perf_counter()
        if any(task.done() for task in running):
            raise LabError("a stream ended before the last long prompt")
        for task in running:
            task.cancel()
    gaps, tokens = _between(streams, began, ended)
    rate = (tokens + count * (REAL_LONG + 1)) / (ended - began)
    return Seen(name, gaps, mean(task.result() for task in asked), rate, is_fixed)


async def _first_token(client: Client, number: int) -> float:
    """Seconds that a long prompt waits for it."""
    sent, stream = time.perf_counter(), new_stream()
    await client.ask(prompt(f"long {number}", REAL_LONG), 1, stream)
    return stream.times[0] - sent


def _between(streams: Sequence[TokenStream], began: float, ended: float) -> tuple[list[float], int]:
    """Gaps that end between the two moments, ranked; and how many tokens came, one a frame."""
    gaps = [
        after - before
        for stream in streams
        for before, after in zip(stream.times, stream.times[1:], strict=False)
        if began < after <= ended
    ]
    return sorted(gaps), len(gaps)


def _report(seen: Sequence[Seen]) -> str:
    rows = []
    for one in seen:
        times = (percentile(one.itl, 50), one.p99, one.itl[-1], one.ttft)
        rows.append((one.name, *map(milliseconds, times), number(one.tokens_per_second)))
    return (
        f"A prompt of {REAL_LONG:,} tokens every {REAL_EVERY:g} s; {STREAMS} streams.\n\n"
        f"{table(HEADS, rows)}\n\n{judge(seen[-1], [one for one in seen if one.is_fixed])}\n"
    )


def judge(target: Seen, fixed: Sequence[Seen]) -> str:
    """Whether the target is kept, and what it costs beside the best budgets."""
    keeps = "below" if target.p99 < BOUND else "not below"
    parts = [
        f"`--itl-target-ms {TARGET_MS}`: the 99th percentile is {milliseconds(target.p99)} ms, "
        f"{keeps} {1000 * BOUND:.0f}."
    ]
    keeping = [one for one in fixed if one.p99 < BOUND]
    for words, ones in (("of all", fixed), ("of those that stay below it", keeping)):
        if not ones:
            parts.append("No fixed budget stays below it.")
            continue
        best = max(ones, key=lambda one: one.tokens_per_second)
        ratio = target.tokens_per_second / best.tokens_per_second
        reaches = "within" if ratio >= NEAR else "not within"
        parts.append(
            f"Throughput is {ratio:.2f} of the best fixed budget's {words} ({best.name}): "
            f"{reaches} {100 * (1 - NEAR):.0f} %."
        )
    return " ".join(parts)
