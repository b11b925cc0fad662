"""One run: the system starts, clients ask, faults come, all is quiet again and is checked."""

import asyncio
import itertools
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.model_files import locate
from common.tokenizer import Tokenizer
from tests.chaos import faults, journals, ledger
from tests.chaos.client import Client
from tests.chaos.faults import Fault
from tests.chaos.site import Site, continue_all, until

FIRST_SECONDS = 2.0  # of load before the first fault
SETTLE_SECONDS = 90.0  # from the last fault until nothing is left to do, on a busy machine
WATCH_SECONDS = 0.5


@dataclass(frozen=True)
class Options:
    seconds: float = 30.0  # of load
    kills: int = 12  # faults of all kinds, spread over these seconds
    seed: int = 0
    roles: tuple[str, ...] = tuple(faults.ROLES)
    clients: int = 8


@dataclass
class Outcome:
    """What happened."""

    options: Options
    clients: Sequence[Client] = ()
    faults: list[Fault] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    began_at: float = 0.0  # the load: monotonic seconds
    settle_seconds: float = 0.0  # from the end of the load to quiet
    tokens_computed: int = 0  # as the plans say: of prompts and answers
    tokens_needed: int = 0  # the same, had each been computed once
    load: list[float] = field(default_factory=list)  # of the machine: before, after
    lives: dict[str, int] = field(default_factory=dict)
    peak_mib: dict[str, float] = field(default_factory=dict)


async def run(options: Options, folder: Path) -> Outcome:
    """`folder` is empty; logs stay in it."""
    outcome = Outcome(options, load=[os.getloadavg()[0]])
    site = Site(folder)
    async with site.running():
        await _strain(site, outcome)
        answers = [answer for client in outcome.clients for answer in client.answers]
        outcome.wrong += await ledger.check(site, answers)
        outcome.tokens_computed = ledger.tokens_computed(site)
        outcome.tokens_needed = await journals.tokens_needed(site)
    outcome.load.append(os.getloadavg()[0])
    outcome.lives = {name: process.num_lives for name, process in site.processes.items()}
    outcome.peak_mib = site.peak_mib
    return outcome


async def _strain(site: Site, outcome: Outcome) -> None:
    """Load and faults, until all is quiet again or takes too long."""
    options, enough = outcome.options, asyncio.Event()
    outcome.clients = _clients(site, options)
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(_watch(site), name="memory")
        asking = [
            tasks.create_task(client.run(enough), name="client") for client in outcome.clients
        ]
        await _disturb(site, outcome, tasks)
        enough.set()
        began_at = time.monotonic()
        await asyncio.wait(asking, timeout=SETTLE_SECONDS)
        try:
            await until(lambda: ledger.is_quiet(site), began_at + SETTLE_SECONDS - time.monotonic())
        except TimeoutError:
            outcome.wrong.append(f"not quiet after {SETTLE_SECONDS:g} s")
        outcome.settle_seconds = time.monotonic() - began_at
        for task in (watch, *asking):
            task.cancel()


def _clients(site: Site, options: Options) -> list[Client]:
    files = locate("embedded", site.folder)
    token_bytes = Tokenizer.load(files).token_bytes
    return [
        Client(
            number,
            random.Random(f"{options.seed} client {number}"),
            site.ports,
            files.name,
            token_bytes,
        )
        for number in range(options.clients)
    ]


async def _disturb(site: Site, outcome: Outcome, tasks: asyncio.TaskGroup) -> None:
    """Faults at random times, each in its part of the load; the last ones are over at its end."""
    options = outcome.options
    rng = random.Random(options.seed)
    longest = max(high for _, high in (faults.PAUSE_SECONDS, *faults.LINK_SECONDS.values()))
    span = options.seconds - FIRST_SECONDS - longest
    began_at = outcome.began_at = time.monotonic()
    drawn = itertools.islice(faults.draw(rng, options.roles), options.kills)
    for number, fault in enumerate(drawn):
        due = FIRST_SECONDS + span * (number + rng.random()) / options.kills
        await asyncio.sleep(max(0.0, began_at + due - time.monotonic()))
        outcome.faults.append(fault)
        tasks.create_task(faults.inject(site, fault, rng, options.roles), name=fault.kind)
    await asyncio.sleep(max(0.0, began_at + options.seconds - time.monotonic()))
    continue_all(site)


async def _watch(site: Site) -> None:
    while True:
        site.watch_memory()
        await asyncio.sleep(WATCH_SECONDS)
