"""The engine that computes a model, step by step; `loading` makes one."""

import time
from dataclasses import dataclass

from common.messages import Chunk, RequestId, Sampled, StepPlan, StepResult
from gpu_worker.batch import Batch, build
from gpu_worker.engine import Capacity, Computed, EngineError, Launched
from gpu_worker.host_pool import HostPool
from gpu_worker.processor import Drawn, Processor
from gpu_worker.rows import Row, Rows

NOT_FINITE = "the model's output for this request is not a finite number"


class ModelEngine:
    """Keeps rows and cache between steps; everything else is a function of the plan."""

    def __init__(self, processor: Processor, capacity: Capacity) -> None:
        self.capacity = capacity
        self._processor = processor
        self._host = HostPool(processor.cache, capacity.num_host_blocks, processor.block_copy)
        self.reset()

    def reset(self) -> None:
        """Forget all rows, and what was swapped out of them."""
        self._processor.synchronize()
        self._rows = Rows(self.capacity, self._processor.model.config.vocab_size)
        self._host.forget()
        self._finished = 0.0  # when the last step was, by the clock of `perf_counter`

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step; see `Engine.execute`."""
        return self.launch(plan).finish()

    def launch(self, plan: StepPlan) -> Launched:
        """Begin one step; see `Engine.launch`. Raises EngineError for a plan that contradicts the
        rows, before anything is computed."""
        began = time.perf_counter()
        for request_id in plan.released:
            self._rows.release(request_id)
        if plan.swap_out:
            self._host.swap_out(plan.swap_out)
        if plan.swap_in:
            self._host.swap_in(plan.swap_in)
        for start in plan.admitted:
            self._rows.start(start)
        chunks, errors = self._runnable(plan)
        if not chunks:
            return Computed(StepResult(plan.step, (), time.perf_counter() - began, errors))
        batch = build(self._rows, chunks, self.capacity.block_size)
        drawn = self._processor.launch(batch)
        self._rows.num_computed[batch.index] = batch.lengths
        self._rows.promise(batch.sampling, batch.sampled_index)
        return _Step(self, plan.step, began, batch, drawn, errors)

    def _runnable(self, plan: StepPlan) -> tuple[list[tuple[Row, Chunk]], dict[RequestId, str]]:
        """The chunks of rows that have not ended, and the errors that are told now."""
        if plan.num_tokens > self.capacity.max_step_tokens:
            raise EngineError(
                f"the plan has {plan.num_tokens} tokens, a step {self.capacity.max_step_tokens}"
            )
        chunks, errors = [], {}
        for chunk in plan.chunks:
            row = self._rows[chunk.request_id]
            if row.error:
                errors[row.request_id], row.error = row.error, ""
            if row.ended or row.last_position >= 0:
                continue
            if chunk.new_blocks:
                self._rows.append_blocks(row, chunk.new_blocks)
            chunks.append((row, chunk))
        return chunks, errors

    def _finish(self, step: "_Step") -> StepResult:
        sampled = []
        tokens, failed = step.drawn.read()
        drawn = zip(
            step.batch.sampling,
            step.batch.position.tolist(),
            tokens.tolist(),
            failed.tolist(),
            strict=True,
        )
        for row, position, token, is_failed in drawn:
            if row.ended:  # in the step before, when this one was launched already
                continue
            if is_failed:
                row.ended = True
                step.errors[row.request_id] = NOT_FINITE
                continue
            finish = self._rows.settle(row, position, token)
            sampled.append(Sampled(row.request_id, position, token, finish))
        # A step that waited on the device for the one before has not taken time meanwhile.
        began, self._finished = max(step.began, self._finished), time.perf_counter()
        return StepResult(step.number, tuple(sampled), self._finished - began, step.errors)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of a `ModelEngine` on its way."""

    engine: ModelEngine
    number: int
    began: float  # by the clock of `perf_counter`
    batch: Batch
    drawn: Drawn
    errors: dict[RequestId, str]

    @property
    def is_done(self) -> bool:
        return self.drawn.is_done

    def wait(self) -> None:
        self.drawn.wait()

    def finish(self) -> StepResult:
        return self.engine._finish(self)
