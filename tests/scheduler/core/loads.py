"""Many requests through a core and a worker of a few lines: for what shows in the long run."""

from collections.abc import Callable, Iterator
from itertools import product
from random import Random

from common.messages import (
    Chunk,
    Ending,
    FinishReason,
    RequestId,
    Sampled,
    Sampling,
    StepPlan,
    StepResult,
)
from scheduler.core.request import Request
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.core.shares import Shares
from scheduler.core.strategies import TABLES, Choices

SECONDS, SECONDS_PER_TOKEN = 0.01, 5e-4  # that steps take


def combinations(*names: str) -> list[dict[str, str]]:
    """All values of these choices with all others."""
    return [
        dict(zip(names, values, strict=True)) for values in product(*(TABLES[n] for n in names))
    ]


def request(number: int, num_prompt: int, max_tokens: int, tenant: str = "x") -> Request:
    return Request(
        RequestId(f"{number}.0"),
        [number * 1000 + i for i in range(num_prompt)],
        num_prompt,
        Sampling(number),
        Ending(max_tokens),
        tenant=tenant,
        arrival=float(number),
    )


def core(
    *,
    num_blocks: int = 12,
    block_size: int = 4,
    max_step_tokens: int = 64,
    max_running: int = 8,
    num_host_blocks: int = 6,
    depth: int = 1,
    shares: Shares | None = None,
    **choices: object,
) -> Scheduler:
    limits = Limits(max_step_tokens, max_running, depth, num_blocks * block_size)
    memory = Memory(num_blocks, block_size, num_host_blocks)
    return Scheduler(limits, memory, Choices(**choices), shares)  # type: ignore[arg-type]


class Loop:
    """Plans as far ahead as it may; each `turn` answers one step."""

    def __init__(self, scheduler: Scheduler, *, length: Callable[[RequestId], int]) -> None:
        """`length` of each answer: no more than its longest."""
        self.core = scheduler
        self.length = length
        self.outputs: dict[RequestId, int] = {}  # tokens known, of those that have not ended
        self.plans: list[StepPlan] = []
        self.ended: list[Request] = []
        self.num_preempted = 0
        self.seconds = 0.0

    def turn(self) -> bool:
        """Whether there was anything to do."""
        while plan := self.core.schedule():
            self.plans.append(plan)
            self.num_preempted += len(self.core.last.preempted)
        if not self.plans:
            return False
        plan = self.plans.pop(0)
        sampled = tuple(self._sample(plan))
        seconds = SECONDS + plan.num_tokens * SECONDS_PER_TOKEN
        self.seconds += seconds
        self.core.apply(StepResult(plan.step, sampled, seconds))
        for request in self.core.take_ended():
            self.ended.append(request)
            self.outputs.pop(request.id, None)
        return True

    def _sample(self, plan: StepPlan) -> Iterator[Sampled]:
        for chunk in plan.chunks:
            if token := self._token(chunk):
                yield token

    def _token(self, chunk: Chunk) -> Sampled | None:
        request_id = chunk.request_id
        position = self.outputs.get(request_id, 0)
        length = self.length(request_id)
        if not chunk.samples or position >= length:
            return None
        self.outputs[request_id] = position + 1
        finish = FinishReason.STOP if position + 1 == length else None
        return Sampled(request_id, position, 5, finish)


def lengths(random: Random, most: int) -> Callable[[RequestId], int]:
    """An answer's length, drawn at first sight and kept."""
    drawn: dict[RequestId, int] = {}

    def length(request_id: RequestId) -> int:
        return drawn.setdefault(request_id, random.randint(1, most))

    return length
