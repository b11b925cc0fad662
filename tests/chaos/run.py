"""One run: the system starts, clients ask, faults come, all is quiet again and is checked."""

import asyncio
import itertools
import os
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from common.bus import UnavailableError
from common.messages import Control, ControlKind, SubmissionId
from common.model_files import locate
from common.redis_bus import RedisBus
from tests.chaos import faults, journals, ledger
from tests.chaos.answer import Answer, Wish
from tests.chaos.client import Client
from tests.chaos.faults import Fault
from tests.chaos.site import POOL, Site, continue_all, until
from tests.chaos.wishes import Wishes

FIRST_SECONDS = 2.0  # of load before the first fault
SETTLE_SECONDS = 90.0  # from the last fault until nothing is left to do, on a busy machine
WATCH_SECONDS = 0.5
MIN_LONGEST_SECONDS = 5.0  # of a partition, however short the run is


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

    @property
    def answers(self) -> list[Answer]:
        return [answer for client in self.clients for answer in client.answers]


@dataclass(frozen=True)
class Load:
    draw: Callable[[Wishes, random.Random, str], Wish]
    most: int | None = None  # requests of each client; None: as long as it lasts


Disturb = Callable[
    [Site, Outcome, asyncio.TaskGroup], Coroutine[None, None, None]
]  # until the load may end


async def run(options: Options, folder: Path) -> Outcome:
    """Faults of all kinds at random times. `folder` is empty; logs stay in it."""
    return await strain(Site(folder), options, Load(Wishes.any), _at_random)


async def strain(site: Site, options: Options, load: Load, disturb: Disturb) -> Outcome:
    outcome = Outcome(options, load=[os.getloadavg()[0]])
    async with site.running():
        await _strain(site, outcome, load, disturb)
        outcome.wrong += await ledger.check(site, outcome.answers)
        outcome.tokens_computed = ledger.tokens_computed(site)
        outcome.tokens_needed = await journals.tokens_needed(site)
    outcome.load.append(os.getloadavg()[0])
    outcome.lives = {name: process.num_lives for name, process in site.processes.items()}
    outcome.peak_mib = site.peak_mib
    return outcome


async def _strain(site: Site, outcome: Outcome, load: Load, disturb: Disturb) -> None:
    """Load and faults, until all is quiet again or takes too long."""
    enough, cancels = asyncio.Event(), asyncio.Queue[SubmissionId]()
    outcome.clients = _clients(site, outcome.options, load, cancels.put_nowait)
    async with asyncio.TaskGroup() as tasks:
        around = [
            tasks.create_task(_watch(site), name="memory"),
            tasks.create_task(_operate(site, cancels), name="operator"),
        ]
        asking = [
            tasks.create_task(client.run(enough, load.most), name="client")
            for client in outcome.clients
        ]
        outcome.began_at = time.monotonic()
        disturbing = tasks.create_task(disturb(site, outcome, tasks), name="faults")
        await asyncio.wait(asking if load.most else [disturbing])
        disturbing.cancel()
        continue_all(site)
        enough.set()
        began_at = time.monotonic()
        await asyncio.wait(asking, timeout=SETTLE_SECONDS)
        try:
            await until(lambda: ledger.is_quiet(site), began_at + SETTLE_SECONDS - time.monotonic())
        except TimeoutError:
            outcome.wrong.append(f"not quiet after {SETTLE_SECONDS:g} s")
        outcome.settle_seconds = time.monotonic() - began_at
        for task in (*around, *asking):
            task.cancel()


def _clients(
    site: Site, options: Options, load: Load, cancel: Callable[[SubmissionId], None]
) -> list[Client]:
    wishes = Wishes(locate("embedded", site.folder))
    draw = partial(load.draw, wishes)
    return [
        Client(
            number,
            random.Random(f"{options.seed} client {number}"),
            site.ports,
            wishes,
            draw,
            cancel,
        )
        for number in range(options.clients)
    ]


async def _at_random(site: Site, outcome: Outcome, tasks: asyncio.TaskGroup) -> None:
    """Each in its part of the load; the last ones are over at its end."""
    options = outcome.options
    rng = random.Random(options.seed)
    longest = max(MIN_LONGEST_SECONDS, options.seconds / 10)
    span = options.seconds - FIRST_SECONDS - min(longest, max(faults.PARTITION_SECONDS))
    drawn = itertools.islice(faults.draw(rng, options.roles, longest), options.kills)
    for number, fault in enumerate(drawn):
        due = FIRST_SECONDS + span * (number + rng.random()) / options.kills
        await asyncio.sleep(max(0.0, outcome.began_at + due - time.monotonic()))
        outcome.faults.append(fault)
        tasks.create_task(faults.inject(site, fault, rng, options.roles), name=fault.kind)
    await asyncio.sleep(max(0.0, outcome.began_at + options.seconds - time.monotonic()))


async def _operate(site: Site, cancels: "asyncio.Queue[SubmissionId]") -> None:
    """Cancels what it is told to."""
    bus = RedisBus(site.server.url, POOL)
    try:
        while True:
            submission = await cancels.get()
            with suppress(UnavailableError):
                await bus.control(Control(ControlKind.CANCEL, submission))
    finally:
        await bus.aclose()


async def _watch(site: Site) -> None:
    while True:
        site.watch_memory()
        await asyncio.sleep(WATCH_SECONDS)
