"""What goes wrong, drawn from a seed: each kind once before any comes again."""

import asyncio
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.site import Site

ROLES = {
    "gateway": ("gateway",),
    "scheduler": ("leader", "standby"),
    "worker": ("worker",),
    "redis": ("redis",),
}
ACTIONS = ("kill", "pause", "cut", "freeze", "terminate")
SEVERAL = "several"
PAUSE_SECONDS = (3.0, 5.0)  # longer than a lease, which is two
LINK_SECONDS = {"cut": (0.0, 5.0), "freeze": (1.0, 5.0)}


@dataclass
class Fault:
    action: str
    role: str
    seconds: float  # for which it lasts
    at: float = 0.0  # monotonic, once it is done
    victims: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return f"{self.action} {self.role}"


def draw(rng: random.Random, roles: Sequence[str]) -> Iterator[Fault]:
    """Without end. `roles`: keys of ROLES."""
    targets = [target for role in roles for target in ROLES[role]]
    deck = [(action, target) for action in ACTIONS for target in targets]
    deck += [("kill", SEVERAL)] * (len(targets) > 1)
    while True:
        for action, target in rng.sample(deck, len(deck)):
            low, high = LINK_SECONDS.get(action, PAUSE_SECONDS if action == "pause" else (0.0, 0.0))
            yield Fault(action, target, rng.uniform(low, high))


async def inject(site: Site, fault: Fault, rng: random.Random, roles: Sequence[str]) -> None:
    """Does it, and takes it back where it lasts for a time."""
    fault.victims = tuple(_victims(site, fault, rng, roles))
    fault.at = time.monotonic()
    match fault.action:
        case "kill":
            for name in fault.victims:
                site.processes[name].signal(signal.SIGKILL)
        case "terminate":
            for name in fault.victims:
                site.processes[name].signal(signal.SIGTERM)
        case "pause":
            await _pause(site, fault)
        case _:
            await _disturb(site, fault)


def _victims(site: Site, fault: Fault, rng: random.Random, roles: Sequence[str]) -> list[str]:
    if fault.role == SEVERAL:
        names = [name for role in roles for name in site.names(role)]
        return rng.sample(names, min(len(names), rng.randint(2, 3)))
    names = site.names(fault.role)
    if fault.action in LINK_SECONDS and fault.role == "redis":
        return list(site.links)  # it is cut off from all
    return [rng.choice(names)] if names else []  # no leader just now


async def _pause(site: Site, fault: Fault) -> None:
    stopped = {name: site.processes[name].signal(signal.SIGSTOP) for name in fault.victims}
    await asyncio.sleep(fault.seconds)
    for name, pid in stopped.items():
        if site.processes[name].pid == pid:
            site.processes[name].signal(signal.SIGCONT)


async def _disturb(site: Site, fault: Fault) -> None:
    links = [site.links[name] for name in fault.victims]
    for link in links:
        link.cut() if fault.action == "cut" else link.freeze()
    await asyncio.sleep(fault.seconds)
    for link in links:
        link.mend()
