"""The scheduler's own parts, built for a simulation as the service builds them."""

from collections.abc import Callable
from dataclasses import replace

from common.config import SchedulerSettings
from common.messages import WorkerHello, WorkerId
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.core.shares import Shares
from scheduler.core.strategies import Choices
from scheduler.fleet import Fleet
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
        choices = Choices(
            batching=settings.batching,
            prefill=settings.prefill,
            kv=settings.kv,
            reservation=settings.reservation,
            preemption=settings.preemption,
            policy=settings.policy,
            aging_seconds=settings.aging_seconds,
            ttft_target_seconds=settings.ttft_target_ms / 1e3,
            prefix_cache=settings.prefix_cache,
            itl_target_seconds=settings.itl_target_ms / 1e3,
        )
    except ValueError as error:
        raise InputError(str(error)) from None

    def build(hello: WorkerHello) -> Scheduler:
        most = settings.max_step_tokens or hello.max_step_tokens
        limits = Limits(
            max_step_tokens=min(most, hello.max_step_tokens),
            max_running=min(settings.max_running, hello.max_rows),
            depth=settings.depth,
            max_request_tokens=hello.max_request_tokens,
        )
        memory = Memory(hello.num_blocks, hello.block_size, hello.num_host_blocks)
        return Scheduler(limits, memory, choices, shares)

    return build
