"""What goes wrong, drawn from a seed: each kind once before any comes again."""

import asyncio
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.site import REDIS, Site

ROLES = {
    "gateway": ("gateway",),
    "scheduler": ("leader", "standby"),
    "worker": ("worker",),
    "redis": ("redis",),
}
ACTIONS = ("kill", "terminate", "pause", "cut", "partition", "freeze")
SEVERAL, ALL = "several", "all"
SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM}
PAUSE_SECONDS = (3.0, 5.0)  # longer than a lease, which is two
FREEZE_SECONDS = (1.0, 5.0)
PARTITION_SECONDS = (1.0, 5.0, 30.0)
START_SECONDS = 60.0  # of the server, with all that it has to read


@dataclass
class Fault:
    action: str
    role: str  # or the name of a process
    seconds: float  # for which it lasts
    at: float = 0.0  # monotonic, once it is done
    victims: tuple[str, ...] = ()
    server_seconds: float = 0.0  # until a server that was killed answers again

    @property
    def kind(self) -> str:
        return f"{self.action} {self.role}"


def draw(rng: random.Random, roles: Sequence[str], longest: float) -> Iterator[Fault]:
    """Without end. `roles`: keys of ROLES. No partition lasts longer than `longest` seconds."""
    targets = [target for role in roles for target in ROLES[role]]
    deck = [(action, target) for action in ACTIONS for target in targets]
    deck += [("kill", SEVERAL)] * (len(targets) > 1)
    while True:
        for action, target in rng.sample(deck, len(deck)):
            yield Fault(action, target, _seconds(rng, action, longest))


def _seconds(rng: random.Random, action: str, longest: float) -> float:
    match action:
        case "pause":
            return rng.uniform(*PAUSE_SECONDS)
        case "freeze":
            return rng.uniform(*FREEZE_SECONDS)
        case "partition":
            return rng.choice([each for each in PARTITION_SECONDS if each <= longest])
    return 0.0


async def inject(site: Site, fault: Fault, rng: random.Random, roles: Sequence[str]) -> None:
    """Does it, and takes it back where it lasts for a time."""
    victims = await asyncio.to_thread(_victims, site, fault, rng, roles)
    fault.victims = tuple(victims)
    fault.at = time.monotonic()
    match fault.action:
        case "kill" | "terminate":
            for name in fault.victims:
                site.processes[name].signal(SIGNALS[fault.action])
            if REDIS in fault.victims:
                await site.until_it_answers(START_SECONDS)
                fault.server_seconds = time.monotonic() - fault.at
        case "pause":
            await _pause(site, fault)
        case _:
            await _disturb(site, fault)


def _victims(site: Site, fault: Fault, rng: random.Random, roles: Sequence[str]) -> list[str]:
    if fault.role == ALL:
        return list(site.processes)
    if fault.role == SEVERAL:
        names = [name for role in roles for name in site.names(role)]
        return rng.sample(names, min(len(names), rng.randint(2, 3)))
    names = [fault.role] if fault.role in site.processes else site.names(fault.role)
    if fault.action in ("cut", "partition", "freeze") and fault.role == REDIS:
        return list(site.links)  # it is cut off from all
    return [rng.choice(names)] if names else []  # no leader just now


async def _pause(site: Site, fault: Fault) -> None:
    stopped = {name: site.processes[name].signal(signal.SIGSTOP) for name in fault.victims}
    await asyncio.sleep(fault.seconds)
    for name, pid in stopped.items():
        if site.processes[name].pid == pid:
            site.processes[name].signal(signal.SIGCONT)


async def _disturb(site: Site, fault: Fault) -> None:
    links, freezes = [site.links[name] for name in fault.victims], fault.action == "freeze"
    for link in links:
        link.freeze() if freezes else link.cut()
    await asyncio.sleep(fault.seconds)
    for link in links:
        link.thaw() if freezes else link.join()
