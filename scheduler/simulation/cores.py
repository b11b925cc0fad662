"""The scheduler's own parts, built for a simulation as the service builds them."""

from collections.abc import Callable
from dataclasses import replace

from common.config import SchedulerSettings
from common.messages import WorkerHello, WorkerId
from scheduler.core.scheduler import Scheduler
from scheduler.core.shares import Shares
from scheduler.fleet import Fleet
from scheduler.setup import choices_of, limits_of, memory_of, weights_of
from scheduler.simulation.errors import InputError

FOREVER = 1e18  # seconds: nobody dies here


def build_fleet(
    settings: SchedulerSettings, shares: Shares, hello: WorkerHello, count: int
) -> Fleet:
    """`count` workers alike, ready for requests. Raises InputError for choices that contradict."""
    fleet = Fleet(core_builder(settings, shares), FOREVER, FOREVER)
    names = [WorkerId(f"w{i}") for i in range(count)]
    fleet.watch({name: replace(hello, worker_id=name) for name in names}, 0.0)
    for name in names:
        fleet.open(name)
    return fleet


def core_builder(settings: SchedulerSettings, shares: Shares) -> Callable[[WorkerHello], Scheduler]:
    try:
        choices = choices_of(settings)
    except ValueError as error:
        raise InputError(str(error)) from None

    def build(hello: WorkerHello) -> Scheduler:
        return Scheduler(limits_of(settings, hello), memory_of(hello), choices, shares)

    return build


def tenant_weights(settings: SchedulerSettings) -> dict[str, float]:
    """Raises InputError."""
    try:
        return weights_of(settings)
    except ValueError as error:
        raise InputError(str(error)) from None
