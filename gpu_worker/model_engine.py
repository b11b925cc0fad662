"""The engine that computes a model, step by step; `loading` makes one."""

import time

from common.messages import (
    Chunk,
    RequestId,
    Sampled,
    StepPlan,
    StepResult,
)
from gpu_worker.batch import Batch, build
from gpu_worker.engine import Capacity, EngineError
from gpu_worker.host_pool import HostPool
from gpu_worker.kv_cache import KVCache
from gpu_worker.llama import Llama
from gpu_worker.rows import Row, Rows
from gpu_worker.sampler import sample

NOT_FINITE = "the model's output for this request is not a finite number"


class ModelEngine:
    """Keeps rows and cache between steps; everything else is a function of the plan."""

    def __init__(self, model: Llama, cache: KVCache, capacity: Capacity) -> None:
        self.capacity = capacity
        self._model = model
        self._cache = cache
        self._device = cache.k.device
        self._host = HostPool(cache, capacity.num_host_blocks, model.ops.block_copy)
        self.reset()

    def reset(self) -> None:
        """Forget all rows, and what was swapped out of them."""
        self._rows = Rows(self.capacity, self._model.config.vocab_size)
        self._host.forget()

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step; see `Engine.execute`. Raises EngineError for a plan that contradicts
        the rows, before anything is computed."""
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
        sampled: list[Sampled] = []
        if chunks:
            batch = build(self._rows, chunks, self.capacity.block_size, self._device)
            sampled = self._compute(batch, errors)
            self._rows.num_computed[batch.index] = batch.lengths
        return StepResult(plan.step, tuple(sampled), time.perf_counter() - began, errors)

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
            if row.ended:
                continue
            if chunk.new_blocks:
                self._rows.append_blocks(row, chunk.new_blocks)
            chunks.append((row, chunk))
        return chunks, errors

    def _compute(self, batch: Batch, errors: dict[RequestId, str]) -> list[Sampled]:
        logits = self._model.forward(batch.inputs, self._cache)
        if not batch.sampling:
            return []
        tokens, failed = sample(logits, batch.columns)
        sampled = []
        for row, token, is_failed in zip(
            batch.sampling, tokens.tolist(), failed.tolist(), strict=True
        ):
            if is_failed:
                row.ended = True
                errors[row.request_id] = NOT_FINITE
                continue
            position, finish = self._rows.append_token(row, token)
            sampled.append(Sampled(row.request_id, position, token, finish))
        return sampled
