"""Continuous batching for one worker. Pure and synchronous: no I/O, no clock, no randomness."""

from collections.abc import Sequence

from common.messages import FinishReason, Sampled, StepPlan, StepResult
from scheduler.core import views
from scheduler.core.cost import CostModel
from scheduler.core.decision import Decision
from scheduler.core.members import Limits, Members, Memory
from scheduler.core.request import Request, Status
from scheduler.core.shares import Shares
from scheduler.core.strategies import Choices

__all__ = ["Limits", "Memory", "Scheduler"]


class Scheduler(Members):
    """Decides which tokens each forward pass computes.

    There is no prefill phase and no decode phase. A request has known and promised tokens, of
    which plans cover `num_planned`, and every step closes part of that gap. A long prompt closes
    it in several chunks; decoding is the case where the gap is one.
    """

    def __init__(
        self,
        limits: Limits,
        memory: Memory,
        choices: Choices | None = None,
        shares: Shares | None = None,
        hash_key: bytes = b"",
    ) -> None:
        """`shares` belongs to the schedulers of all workers; `hash_key`: secret, up to 64 bytes."""
        super().__init__(limits, memory, choices or Choices(), shares or Shares(), hash_key)
        self.cost = CostModel()
        self.last = Decision(0, limits.max_step_tokens)  # by `schedule`

    def can_plan(self) -> bool:
        return len(self._in_flight) <= self.limits.depth

    def schedule(self) -> StepPlan | None:
        """Plan the next forward pass; None if there is nothing to do, or enough is planned.

        Running requests first, in their rank, those that decode before those that prefill, so
        that no prompt starves them; then the line, unless somebody who runs lacks blocks.
        """
        if not self.can_plan():
            return None
        planner, most = self._planner, self.limits.max_step_tokens
        step = self.last = Decision(self._planned + 1, most, most, self.running.num_ending)
        if self.choices.policy == "priority" and self.choices.preemption != "never":
            planner.make_way(step)
        if self._line_goes_first():
            planner.admit_line(step)
        if not step.chunks:
            self._extend_rows(step)
            if self.choices.prefill != "exclusive":
                planner.admit_line(step)
        return self._close(step)

    def _line_goes_first(self) -> bool:
        """Whether to try a step of prompts alone: always, or for one that needs all of a step."""
        head, prefill = self.waiting.head, self.choices.prefill
        if head is None or prefill == "chunked":
            return False
        needed = len(head.tokens) - head.num_saved + len(self.running)
        return prefill == "exclusive" or needed > self.limits.max_step_tokens

    def _extend_rows(self, step: Decision) -> None:
        prefilling = self._planner.decode(self.running.rows, step)
        self._bound_prefill(step, prefilling[0].num_planned if prefilling else 0)
        for request in prefilling:
            if request.status is Status.RUNNING:
                self._planner.extend(request, step)

    def _bound_prefill(self, step: Decision, start: int) -> None:
        """Leave to prompts only what the latency of those that decode allows."""
        target = self.choices.itl_target_seconds
        if target and step.num_decoding:
            room = self.cost.room(step, start, target)
            left = min(step.tokens_left, max(room, self.pool.block_size))  # nobody starves
            step.budget -= step.tokens_left - left
            step.tokens_left = left

    def apply(self, result: StepResult) -> Sequence[Request]:  # noqa: C901 - calls cost too much
        """Take in what a step sampled; results come in order. One applied before is ignored.

        Returns the requests that have a token more. Raises ValueError for a step that is not the
        next one in flight.
        """
        if result.step <= self._applied:
            return ()
        plan, step = self._land(result)
        sampled = {token.request_id: token for token in result.sampled}
        advanced: list[Request] = []
        number, is_fair = plan.step, self._is_fair
        for request, chunk in zip(step.requests, plan.chunks, strict=True):
            token = sampled.get(request.id) if chunk.samples else None
            if request.row_since <= number:
                request.num_computed = computed = chunk.start + chunk.count
                if computed >= request.publish_at and self.cache:
                    self.cache.publish(request)
                # What `_receive` does, written out for the case that steps are full of.
                if token and token.finish is None:
                    tokens = request.tokens
                    known = len(tokens)
                    if (
                        token.position == known - request.num_prompt
                        and known + 1 < request.max_length
                    ):
                        tokens.append(token.token)
                        request.num_promised -= 1
                        advanced.append(request)
                        if is_fair:
                            self.shares.charge_output(request.tenant, 1)
                        continue
            if not chunk.samples:
                request.num_filling -= 1
            elif self._receive(request, token):
                advanced.append(request)
            self._hand_over(request)
        return advanced

    def _land(self, result: StepResult) -> tuple[StepPlan, Decision]:
        """The next step in flight, which is no more; rows that failed in it have ended."""
        if not self._in_flight or self._in_flight[0][0].step != result.step:
            raise ValueError(f"step {result.step} applied after {self._applied}")
        plan, step = self._in_flight.popleft()
        self._applied = plan.step
        self.pool.apply(plan.step)
        if plan.chunks:
            self.cost.learn(step, result.seconds)
        for request_id, error in result.errors.items():
            self.end(request_id, FinishReason.ERROR, error=error)
        return plan, step

    def _close(self, step: Decision) -> StepPlan | None:
        if not step.chunks and not self.running.released:
            return None
        plan = StepPlan(
            step.step,
            tuple(self.running.released),
            tuple(step.admitted),
            tuple(step.chunks),
            tuple(self.running.viewers.items()),
            tuple(step.swap_out),
            tuple(step.swap_in),
        )
        self.running.released.clear()
        self.running.viewers.clear()
        self._planned = step.step
        self._in_flight.append((plan, step))
        return plan

    def _receive(self, request: Request, sampled: Sampled | None) -> bool:
        """Take in the token of a chunk that samples; whether there is one.

        One that ended by itself or by an error has no token: the worker passes it over. One that
        was ended from outside gets it still, since the log has it.
        """
        if sampled and sampled.position == len(request.tokens) - request.num_prompt:
            request.tokens.append(sampled.token)
            request.num_promised -= 1
            if self._is_fair:
                self.shares.charge_output(request.tenant, 1)
            reason = sampled.finish  # the worker knows its end tokens
            if reason is None and len(request.tokens) >= request.max_length:
                reason = FinishReason.LENGTH
            if reason and request.status is not Status.FINISHED:
                self._finish(request, reason)
            return True
        if request.status is not Status.FINISHED:
            self._finish(request, FinishReason.ERROR, error="the worker lost a token")
        request.num_promised -= 1
        return False

    # --- how it looks from outside --------------------------------------------------------------

    def rows(self) -> list[views.View]:
        """Who runs, in rank."""
        return views.rows(self.running, self.last)

    def line(self, count: int) -> list[views.View]:
        """The first `count` that wait, in order, each with the reason."""
        return views.line(self.waiting, self.cache, self.last, count)

    def cached_tokens(self, request: Request) -> int:
        """How many of its first tokens this worker need not compute."""
        return len(self.cache.match(request)) * self.pool.block_size if self.cache else 0

    @property
    def backlog_tokens(self) -> int:
        """To be computed before line and rows have caught up."""
        rows = sum(row.num_pending for row in self.running.rows if row.num_pending > 1)
        return self.waiting.num_tokens + rows

    def predicted_wait(self) -> float:
        """Seconds until one that came now would start, as far as is known of the others."""
        step, room = self.last, self.limits.max_step_tokens
        return views.predicted_wait(
            self.cost,
            step,
            backlog=self.backlog_tokens,
            room=max(1, room - step.num_decoding),
            num_ends=self._ends_before_next(),
            num_running=len(self.running),
            answer_tokens=self.answer_tokens,
        )

    def _ends_before_next(self) -> int:
        """Answers that have to end before one that came now is admitted, as far as is known."""
        if views.lacks_memory(self.waiting, self.last):
            return self.waiting.num_ready + 1
        return int(not self.running.has_seat(0))
