"""What the settings of a scheduler become; ValueError where they make no sense together."""

from common.config import SchedulerSettings
from common.messages import WorkerHello
from scheduler.core.scheduler import Limits, Memory
from scheduler.core.strategies import Choices


def choices_of(settings: SchedulerSettings) -> Choices:
    is_automatic = settings.prefix_cache == "auto"
    return Choices(
        batching=settings.batching,
        prefill=settings.prefill,
        kv=settings.kv,
        reservation=settings.reservation,
        preemption=settings.preemption,
        policy=settings.policy,
        aging_seconds=settings.aging_seconds,
        ttft_target_seconds=settings.ttft_target_ms / 1000,
        prefix_cache=settings.kv == "paged" if is_automatic else settings.prefix_cache == "on",
        itl_target_seconds=settings.itl_target_ms / 1000,
    )


def weights_of(settings: SchedulerSettings) -> dict[str, float]:
    """Of `alice=2,bob=0.5`."""
    weights: dict[str, float] = {}
    for part in filter(None, map(str.strip, settings.tenant_weights.split(","))):
        tenant, equals, text = part.rpartition("=")
        try:
            weight = float(text)
        except ValueError:
            weight = 0.0
        if not (tenant and equals and 0 < weight < float("inf")):
            raise ValueError(
                f"--tenant-weights: {part!r} is no tenant=weight with a positive weight"
            )
        if tenant in weights:
            raise ValueError(f"--tenant-weights: {tenant} is named twice")
        weights[tenant] = weight
    return weights


def limits_of(settings: SchedulerSettings, hello: WorkerHello) -> Limits:
    most = settings.max_step_tokens or hello.max_step_tokens
    return Limits(
        max_step_tokens=min(most, hello.max_step_tokens),
        max_running=min(settings.max_running, hello.max_rows),
        depth=settings.depth,
        max_request_tokens=hello.max_request_tokens,
        max_rows=hello.max_rows,
    )


def memory_of(hello: WorkerHello) -> Memory:
    return Memory(hello.num_blocks, hello.block_size, hello.num_host_blocks)
