"""Four requests with 6, 2, 2 and 2 iterations left share two seats. A static batch keeps the second
seat empty until the longest of its members has ended: 6 + 2 = 8 iterations. Where whoever leaves is
replaced in the very next iteration, all are done in 6: no seat is ever empty while somebody waits.

Source: the idea of iteration-level scheduling, Orca (OSDI 2022). Prompts have one token here, so
that every iteration is one token of each who takes part. The real requests are gathered in line
while their tenant is drained, and released together; the iterations are those of the pool's own
`timeline`.
"""

import asyncio
import csv
from pathlib import Path

from cli.lab.drawing import LEGEND, draw, steps
from cli.lab.errors import LabError
from cli.lab.experiment import Setting
from cli.lab.server import Entry, Pool, up
from cli.lab.simulator import draw as draw_simulated
from cli.lab.simulator import simulate
from cli.lab.streams import Client, new_stream, run
from cli.lab.text import block, table

TITLE = "Who leaves is replaced at once: 6, 2, 2 and 2 iterations on two seats"
LENGTHS = (6, 2, 2, 2)
SEATS = 2
EXPECTED = {"static": 8, "continuous": 6}
TENANT = "tenant:anonymous"


def simulated(setting: Setting) -> str:
    path = setting.data_dir / "four.csv"
    _write_workload(path)
    settings = {"workload": path, "max_running": SEATS}
    cases = {name: {"batching": name} for name in EXPECTED}
    found = simulate(settings, cases)
    drawn = draw_simulated(settings, cases)
    counts = {name: int(case["steps"]) for name, case in found.items()}
    return _report(counts, drawn)


def _write_workload(path: Path) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("arrival_s", "tenant", "prompt_tokens", "output_tokens"))
        rows.writerows((0, "anonymous", 1, length) for length in LENGTHS)


def real(setting: Setting) -> str:
    counts, drawn = {}, {}
    for name in EXPECTED:
        with up(setting.data_dir, batching=name, max_running=SEATS) as pool:
            timeline = run(_serve(pool))
        counts[name] = len(steps(timeline))
        drawn[name] = draw(timeline)
    return _report(counts, drawn)


async def _serve(pool: Pool) -> list[Entry]:
    """All four wait when the first iteration is planned."""
    client = await Client.connect(pool.url)
    await asyncio.to_thread(pool.queue, "drain", TENANT)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for number, length in enumerate(LENGTHS, 1):
            tasks.create_task(client.ask([1000 + number], length, new_stream()))
            await asyncio.to_thread(pool.await_waiting, number)
        await asyncio.to_thread(pool.queue, "release", TENANT)
    return await _complete_timeline(pool)


async def _complete_timeline(pool: Pool) -> list[Entry]:
    """The scheduler writes of the last ends a moment later than the clients see them."""
    for _ in range(50):
        timeline = await asyncio.to_thread(pool.timeline)
        if sum(len(entry["ended"]) for entry in timeline) == len(LENGTHS):
            return timeline
        await asyncio.sleep(0.2)
    raise LabError("the timeline does not tell of all ends")


def _report(counts: dict[str, int], drawn: dict[str, str]) -> str:
    rows = [(name, EXPECTED[name], counts[name]) for name in EXPECTED]
    pictures = "\n\n".join(f"{name}:\n{drawn[name]}" for name in EXPECTED)
    figures = table(("batching", "iterations expected", "iterations"), rows)
    return f"{figures}\n\n{block(pictures)}\n\n({LEGEND}.)\n"
