"""A core and a worker that checks what it is told, driven step by step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from common.codec import decode_plan, encode_plan
from common.messages import (
    Chunk,
    Ending,
    GatewayId,
    RequestId,
    Sampling,
    StepPlan,
    StepResult,
    SubmissionId,
    Submit,
)
from scheduler.core.invariants import check
from scheduler.core.request import Request
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.core.shares import Shares
from scheduler.core.strategies import Choices
from tests.doubles import ShadowWorker

TOKEN, END_TOKEN = 7, 0


class Drive:
    """A scheduler and its worker; `names` shortens the id `a.0` to `a`."""

    def __init__(
        self,
        *,
        num_blocks: int = 32,
        block_size: int = 4,
        max_step_tokens: int = 16,
        max_running: int = 4,
        depth: int = 1,
        max_request_tokens: int = 100,
        max_preemptions: int = 3,
        max_rows: int = 0,
        num_host_blocks: int = 0,
        shares: Shares | None = None,
        **choices: Any,
    ) -> None:
        """The prefix cache is off unless asked for: prompts here are all alike."""
        limits = Limits(
            max_step_tokens, max_running, depth, max_request_tokens, max_preemptions, max_rows
        )
        memory = Memory(num_blocks, block_size, num_host_blocks)
        chosen = Choices(**{"prefix_cache": False, **choices})
        self.scheduler = Scheduler(limits, memory, chosen, shares, b"key")
        self.worker = ShadowWorker(
            num_blocks=num_blocks,
            block_size=block_size,
            max_rows=max_rows or max_running,
            max_step_tokens=max_step_tokens,
            num_host_blocks=num_host_blocks,
            contiguous=chosen.kv == "reserved",
        )
        self.results: list[StepResult] = []
        self.ended: list[Request] = []
        self.chunks: list[Chunk] = []  # of all plans

    def add(
        self, name: str, num_prompt: int, max_tokens: int = 20, arrival: float = 0, **fields: object
    ) -> Request:
        made = request(name, num_prompt, max_tokens, arrival)
        for field, value in fields.items():
            setattr(made, field, value)
        assert self.scheduler.never_fits(made) is None
        self.scheduler.add(made)
        return made

    def plan(self) -> StepPlan:
        plan = self.scheduler.schedule()
        check(self.scheduler)
        assert plan, "nothing to do"
        assert decode_plan(encode_plan(plan)) == plan, "not what the worker gets"
        self.worker.load(plan)
        self.chunks += plan.chunks
        return plan

    def answer(
        self, token: int = TOKEN, failing: tuple[str, ...] = (), seconds: float = 0.0
    ) -> Sequence[Request]:
        ids = [RequestId(f"{name}.0") for name in failing]
        result = self.worker.execute(lambda *_: token, ids)
        self.results.append(replace(result, seconds=seconds))
        return self.apply(self.results[-1])

    def apply(self, result: StepResult) -> Sequence[Request]:
        advanced = self.scheduler.apply(result)
        self.worker.answered(result.step)
        check(self.scheduler)
        return advanced

    def step(self) -> StepPlan:
        """Plan and answer: nothing is in flight before and after."""
        plan = self.plan()
        self.answer()
        return plan

    def next_start(self) -> StepPlan:
        """The next plan that admits somebody, in flight; what was in flight before is answered."""
        for _ in range(100):
            while self.worker.num_loaded:
                self.answer()
            if (plan := self.plan()).admitted:
                return plan
        raise AssertionError("nobody is admitted any more")

    def finish(self) -> list[str]:
        """Until all are ended, in the order of their ends."""
        ended = []
        for _ in range(1_000):
            while plan := self.scheduler.schedule():
                self.worker.load(plan)
            if not self.worker.num_loaded:
                break
            self.answer()
            ended += names([made.id for made in self.take_ended()])
        assert not self.scheduler.requests
        assert not self.worker.rows
        assert self.scheduler.pool.num_free == self.scheduler.pool.num_blocks
        assert self.scheduler.host.num_free == self.scheduler.host.num_blocks
        return ended

    def take_ended(self) -> list[Request]:
        ended = self.scheduler.take_ended()
        self.ended += ended
        return ended

    # --- What the last step decided -----------------------------------------------------------

    @property
    def preempted(self) -> list[str]:
        return names([who for who, _ in self.scheduler.last.preempted])

    @property
    def running(self) -> list[str]:
        return names([row.id for row in self.scheduler.running.rows])

    @property
    def line(self) -> list[str]:
        return names([seen.request_id for seen in self.scheduler.line(1_000)])

    @property
    def passed(self) -> list[tuple[str, str]]:
        return [(who[:-2], reason.value) for who, reason in self.scheduler.last.passed]


def request(
    name: str,
    num_prompt: int,
    max_tokens: int = 20,
    arrival: float = 0,
    tokens: tuple[int, ...] = (),
) -> Request:
    """Its prompt is 1, 2, 3 ..., unless `tokens` say otherwise."""
    submit = Submit(
        SubmissionId(name),
        (tokens or tuple(range(1, num_prompt + 1)),),
        1,
        Sampling(0),
        Ending(max_tokens, end_tokens=(END_TOKEN,)),
        GatewayId("g"),
    )
    return Request.from_submit(submit, 0, arrival)


def chunks(plan: StepPlan) -> list[tuple[str, int, int]]:
    return [(chunk.request_id[:-2], chunk.start, chunk.count) for chunk in plan.chunks]


def names(ids: tuple[RequestId, ...] | list[RequestId]) -> list[str]:
    return [request_id[:-2] for request_id in ids]


def started(plan: StepPlan) -> list[str]:
    return names([start.request_id for start in plan.admitted])
