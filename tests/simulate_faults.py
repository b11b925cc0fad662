"""The whole system under faults, in virtual time: `python -m tests.simulate_faults --seeds 1000`.

A seed gives a schedule: processes die and stall, connections break, the server crashes, clients
leave. The same seed gives the same schedule, in any process: a failing one is shown with the
command that replays it, `--trace` prints all that happened in it, and `--count` how often what
happened, and in how many schedules.
"""

import argparse
import gc
import logging
import multiprocessing
import multiprocessing.pool
import os
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from unittest import mock

import structlog

import scheduler.logs
import scheduler.service
from tests.system import promises, virtual_time
from tests.system.fault_world import World

AT_ONCE = 10  # seeds that a process is given
Trace = list[tuple[float, str, str]]


@dataclass(frozen=True)
class Verdict:
    seed: int
    wrong: str  # "": all that was promised is true
    trace: Trace

    @property
    def reason(self) -> str:
        """The last line that says something: of a group, it is that of the innermost error."""
        lines = [line.strip(" |+-") for line in self.wrong.splitlines()]
        return next(line for line in reversed(lines) if line)

    def __str__(self) -> str:
        replay = f"python -m tests.simulate_faults --from {self.seed} --seeds 1 --trace"
        return f"seed {self.seed}: {self.reason}\n  replay: {replay}"


@dataclass
class Report:
    """Of many schedules."""

    failed: list[Verdict] = field(default_factory=list)
    times: Counter[str] = field(default_factory=Counter)  # how often what happened
    schedules: Counter[str] = field(default_factory=Counter)  # in which it did

    def note(self, verdict: Verdict) -> None:
        here = Counter(kind(who, what) for _, who, what in verdict.trace)
        self.times += here
        self.schedules.update(here.keys())
        if verdict.wrong:
            self.failed.append(verdict)

    def add(self, other: "Report") -> None:
        self.failed += other.failed
        self.times += other.times
        self.schedules += other.schedules


def kind(who: str, what: str) -> str:
    """The same for all processes and clients: `g7` and `g12` are gateways."""
    return f"{re.sub(r'[0-9]+$', '', who)}: {re.sub(r'^r[0-9]+', 'request', what)}"


def simulate(seed: int) -> Verdict:
    """One schedule, from its beginning to nothing left."""
    world = World(seed)
    promises.WatchedReign.num_lost = 0

    async def play() -> None:
        await world.run()
        if not world.server.has_lost:
            promises.check_clients(world)
        promises.check_leader(world)
        await world.end()
        promises.check_server(world)

    with mock.patch.object(scheduler.service, "Reign", promises.WatchedReign), hurry(world):
        try:
            virtual_time.run(play())
        except Exception:  # noqa: BLE001 - whatever it is, it is what was looked for
            return Verdict(seed, traceback.format_exc(), world.trace)
    return Verdict(seed, "", world.trace)


def hurry(world: World) -> AbstractContextManager[None]:
    """What a log holds beyond what it must would hide what it lacks."""
    delay, every = (0.0, 0.1) if world.hurries else (2.0, 1.0)
    return mock.patch.multiple(scheduler.logs, TRIM_DELAY_SECONDS=delay, TRIM_EVERY_SECONDS=every)


def report(seeds: range) -> Report:
    gc.freeze()  # whatever is here by now stays
    found = Report()
    for seed in seeds:
        found.note(simulate(seed))
    return found


def be_quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def simulate_all(first: int, count: int, jobs: int) -> Iterator[Report]:
    """The seeds [first, first + count), on so many processes; some at a time, in any order."""
    stop = first + count
    parts = [range(at, min(at + AT_ONCE, stop)) for at in range(first, stop, AT_ONCE)]
    with processes(jobs) as pool:
        yield from pool.imap_unordered(report, parts)


@contextmanager
def processes(jobs: int) -> Iterator[multiprocessing.pool.Pool]:
    """Of one seed for hashes: a set of strings has another order in each process otherwise."""
    with (
        mock.patch.dict(os.environ, {"PYTHONHASHSEED": "0"}),
        multiprocessing.get_context("spawn").Pool(jobs, be_quiet) as pool,
    ):
        yield pool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.simulate_faults")
    parser.add_argument("--seeds", type=int, default=200, help="how many schedules")
    parser.add_argument("--from", type=int, default=1, dest="first", help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--trace", action="store_true", help="print all that happens, seed by seed")
    parser.add_argument("--count", action="store_true", help="print how often what happened")
    options = parser.parse_args()
    if options.trace:
        return show(options.first, options.seeds)
    begun, whole = time.monotonic(), Report()
    for part in simulate_all(options.first, options.seeds, options.jobs):
        whole.add(part)
        for verdict in part.failed:
            print(verdict, flush=True)
    if options.count:
        for what, times in sorted(whole.times.items()):
            print(f"{times:8} times in {whole.schedules[what]:5} schedules  {what}")
    seconds = time.monotonic() - begun
    print(f"{options.seeds} seeds, {len(whole.failed)} failed, {seconds:.1f} s")
    return bool(whole.failed)


def show(first: int, count: int) -> int:
    with processes(1) as pool:
        verdicts = pool.map(simulate, range(first, first + count))
    for verdict in verdicts:
        for when, who, what in verdict.trace:
            print(f"{when:12.5f} {who:8} {what}")
        print(verdict.wrong)
    return any(verdict.wrong for verdict in verdicts)


if __name__ == "__main__":
    sys.exit(main())
