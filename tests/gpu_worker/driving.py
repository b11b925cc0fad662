"""Drives an engine with the scheduler's real core, one plan ahead as the service does."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from common.messages import (
    BlockId,
    Chunk,
    Ending,
    FinishReason,
    RequestId,
    RowStart,
    Sampling,
    StepPlan,
    StepResult,
)
from gpu_worker.batch import build
from gpu_worker.engine import Engine, Launched
from gpu_worker.model_engine import ModelEngine
from gpu_worker.processor import host_inputs
from gpu_worker.rows import Rows
from scheduler.core.request import Request
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.core.strategies import Choices

GREEDY = Sampling(seed=0, temperature=0.0)


def make_request(
    name: str, prompt: Sequence[int], ending: Ending, sampling: Sampling = GREEDY
) -> Request:
    return Request(RequestId(name), list(prompt), len(prompt), sampling, ending)


class Driver:
    """Runs requests to their ends; keeps what the engine answered."""

    def __init__(
        self,
        engine: Engine,
        *,
        max_step_tokens: int = 0,
        max_running: int = 64,
        num_blocks: int = 0,
        depth: int = 1,
        **choices: Any,
    ) -> None:
        capacity = engine.capacity
        limits = Limits(
            max_step_tokens=max_step_tokens or capacity.max_step_tokens,
            max_running=min(max_running, capacity.max_rows),
            depth=depth,
            max_request_tokens=capacity.max_request_tokens,
        )
        memory = Memory(
            num_blocks or capacity.num_blocks, capacity.block_size, capacity.num_host_blocks
        )
        self.engine = engine
        self.scheduler = Scheduler(limits, memory, Choices(**choices), hash_key=b"key")
        self.plans: list[StepPlan] = []
        self.results: list[StepResult] = []
        self.ended: dict[RequestId, Request] = {}
        self._waiting: deque[StepPlan] = deque()

    def run(
        self, requests: Sequence[Request], arrivals: Mapping[int, Sequence[Request]] | None = None
    ) -> dict[RequestId, list[int]]:
        """The answers of `requests`, and of those that arrive when so many steps are done."""
        later = dict(arrivals or {})
        for request in requests:
            assert not self.scheduler.never_fits(request)
            self.scheduler.add(request)
        while self.scheduler.requests or later or self.is_busy():
            for request in later.pop(len(self.results), ()):
                self.scheduler.add(request)
            self._step()
        pool = self.scheduler.pool
        assert pool.num_free == pool.num_blocks
        return {request.id: request.tokens[request.num_prompt :] for request in self.ended.values()}

    def _step(self) -> None:
        while plan := self.scheduler.schedule():
            self.plans.append(plan)
            self._waiting.append(plan)
        result = self._execute()
        self.results.append(result or StepResult(0, (), 0.0))  # idle: time goes on
        if result:
            self.scheduler.apply(result)
        for request in self.scheduler.take_ended():
            self.ended[request.id] = request

    def _execute(self) -> StepResult | None:
        return self.engine.execute(self._waiting.popleft()) if self._waiting else None

    def is_busy(self) -> bool:
        return bool(self._waiting)

    def finish_reason(self, name: str) -> FinishReason | None:
        return self.ended[RequestId(name)].finish_reason


class AheadDriver(Driver):
    """Launches each step before it reads the one before, as the engine's thread does."""

    def __init__(self, engine: Engine, **settings: Any) -> None:
        super().__init__(engine, **settings)
        self._launched: deque[Launched] = deque()
        self.num_ahead = 0  # steps that were launched while another was not read

    def _execute(self) -> StepResult | None:
        while self._waiting and len(self._launched) < 2:
            self.num_ahead += bool(self._launched)
            self._launched.append(self.engine.launch(self._waiting.popleft()))
        return self._launched.popleft().finish() if self._launched else None

    def is_busy(self) -> bool:
        return super().is_busy() or bool(self._launched)


def logits_by_chunk(
    engine: ModelEngine, prompt: Sequence[int], size: int
) -> list[tuple[int, Tensor]]:
    """(tokens computed, logits [V] after the last of them) for a prompt cut into chunks."""
    capacity, request_id = engine.capacity, RequestId("logits.0")
    model, cache = engine._processor.model, engine._processor.cache
    rows = Rows(capacity, model.config.vocab_size)
    logits = []
    for start in range(0, len(prompt), size):
        stop = min(start + size, len(prompt))
        # A row that knows the tokens up to here only, so that the chunk may sample.
        rows.release(request_id)
        rows.start(RowStart(request_id, tuple(prompt[:stop]), stop, GREEDY, Ending(1), (), start))
        row = rows[request_id]
        num_blocks = -(-stop // capacity.block_size)
        rows.append_blocks(row, [BlockId(2 * i + 1) for i in range(num_blocks)])
        chunk = Chunk(request_id, start, stop - start, (), samples=True)
        batch = build(rows, [(row, chunk)], capacity.block_size)
        logits.append((stop, model.forward(host_inputs(batch.fields()), cache)[0]))
    return logits
