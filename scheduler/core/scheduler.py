"""Continuous batching for one worker. Pure and synchronous: no I/O, no clock, no randomness."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from common.messages import (
    FinishReason,
    GatewayId,
    RequestId,
    Sampled,
    StepPlan,
    StepResult,
)
from scheduler.core.block_pool import BlockPool
from scheduler.core.decision import Decision, Reason, View, view
from scheduler.core.planner import Planner
from scheduler.core.request import Request, Status
from scheduler.core.running import Running
from scheduler.core.strategies import Strategies
from scheduler.core.waiting import WaitingLine


@dataclass(frozen=True, slots=True)
class Limits:
    max_step_tokens: int  # tokens that one forward pass computes
    max_running: int  # requests that have rows at one time
    depth: int  # steps planned ahead of the one that computes
    max_request_tokens: int  # prompt and answer of one request
    max_preemptions: int = 3  # of one request; then it comes back only where it can stay


@dataclass(frozen=True, slots=True)
class Applied:
    advanced: Sequence[tuple[Request, tuple[int, ...]]] = ()  # with the tokens that are new


class Scheduler:
    """Decides which tokens each forward pass computes.

    There is no prefill phase and no decode phase. A request has known and promised tokens, of
    which plans cover `num_planned`, and every step closes part of that gap. A long prompt closes
    it in several chunks; decoding is the case where the gap is one.
    """

    def __init__(
        self, limits: Limits, pool: BlockPool, strategies: Strategies | None = None
    ) -> None:
        self.limits = limits
        self.pool = pool
        self.strategies = strategies or Strategies()
        self.requests: dict[RequestId, Request] = {}  # all until `take_ended` or `strand`
        self.waiting = WaitingLine()
        self.running = Running(pool, limits.max_preemptions)
        self._planner = Planner(
            self.pool, self.running, self.waiting, self.strategies, limits.max_running
        )
        self.last = Decision(step=0, tokens_left=limits.max_step_tokens)  # by `schedule`
        self._planned = 0  # the last step planned
        self._applied = 0  # the last step applied
        self._in_flight: deque[tuple[StepPlan, list[Request]]] = deque()
        self._ended: list[Request] = []
        self._serial = 0

    # --- requests come and go -----------------------------------------------------------------

    def never_fits(self, request: Request) -> str | None:
        """Why the request can never run here, with the numbers; None if it can."""
        if request.num_prompt == 0:
            return "the prompt is empty"
        length, most = request.max_length, self.limits.max_request_tokens
        if length > most:
            return f"{length} tokens of prompt and answer are more than the {most} of a request"
        pool = self.pool
        if _max_blocks(request, pool) > pool.num_blocks:
            size = pool.num_blocks * pool.block_size
            return f"{length} tokens of prompt and answer are more than the {size} of the cache"
        return None

    def add(self, request: Request) -> None:
        """Put the request into the line. A known id is ignored: streams deliver at least once.

        One that comes with a complete answer, from a worker that was lost, ends at once.
        """
        if request.id in self.requests:
            return
        self._serial += 1
        request.max_blocks = _max_blocks(request, self.pool)
        request.place = (*self.strategies.place(request), self._serial)
        self.requests[request.id] = request
        self.waiting.add(request)
        if reason := request.own_end:
            self._finish(request, reason)

    def end(
        self,
        request_id: RequestId,
        reason: FinishReason,
        *,
        kept: int | None = None,
        error: str = "",
    ) -> None:
        """Take the request out of all later plans. Ignored if unknown or ended already.

        `kept` output tokens count; None: all, with those that steps in flight still bring.
        """
        request = self.requests.get(request_id)
        if request and request.status is not Status.FINISHED:
            self._finish(request, reason, kept, error)

    def hold(self, request_id: RequestId) -> None:
        """Pass it over from now on. One that runs gives up its row, and counts no preemption."""
        request = self.requests.get(request_id)
        if not request or request.held or request.status is Status.FINISHED:
            return
        if request.status is Status.RUNNING:
            self.running.vacate(request, self._planned)
            request.move_to(Status.WAITING)
        else:
            self.waiting.remove(request)
        request.held = True
        self.waiting.add(request)

    def release(self, request_id: RequestId) -> None:
        request = self.requests.get(request_id)
        if request and request.held and request.status is Status.WAITING:
            self.waiting.remove(request)
            request.held = False
            self.waiting.add(request)

    def set_priority(self, request_id: RequestId, priority: int) -> None:
        """Move it to where the policy puts it now, if it waits.

        One that runs keeps its place: others were admitted relying on it (`Running.keeps_word`).
        """
        request = self.requests.get(request_id)
        if not request or request.status is Status.FINISHED:
            return
        request.priority = priority
        if request.status is Status.WAITING:
            self.waiting.remove(request)
            request.place = (*self.strategies.place(request), request.place[-1])
            self.waiting.add(request)

    def set_gateways(self, request_id: RequestId, gateways: tuple[GatewayId, ...]) -> None:
        """Who shows its tokens from the next plan on."""
        if request := self.requests.get(request_id):
            request.gateways = gateways
            if request.status is Status.RUNNING:
                self.running.viewers[request_id] = gateways

    def take_ended(self) -> list[Request]:
        """Finished requests that no step in flight names: each exactly once, `kept` final."""
        ended, self._ended = self._ended, []
        for request in ended:
            del self.requests[request.id]
            most = request.num_output
            request.kept = most if request.kept is None else min(request.kept, most)
        return ended

    def strand(self) -> list[Request]:
        """The worker is lost, and its log is read to the end: hand back all unfinished requests.

        They wait, with their known tokens, for another scheduler; nothing is in flight any more.
        What had ended comes out of `take_ended`.
        """
        for request in list(self.running.rows):
            self.running.vacate(request, self._planned)
            request.move_to(Status.WAITING)
            self.waiting.add(request)
        self._forget_steps()
        stranded = list(self.waiting)
        for request in stranded:
            self.waiting.remove(request)
            del self.requests[request.id]
        return stranded

    # --- steps --------------------------------------------------------------------------------

    def can_plan(self) -> bool:
        return len(self._in_flight) <= self.limits.depth

    def schedule(self) -> StepPlan | None:
        """Plan the next forward pass; None if there is nothing to do, or enough is planned.

        Running requests first, oldest first, those that decode before those that prefill, so
        that no prompt starves them; then the line, unless somebody who runs lacks blocks.
        """
        if not self.can_plan():
            return None
        planner = self._planner
        step = self.last = Decision(self._planned + 1, self.limits.max_step_tokens)
        prefilling = []
        for request in self.running.rows:  # victims are younger: they leave ahead of this loop
            if request.num_pending > 1:
                prefilling.append(request)
            else:
                planner.extend(request, 1, step)
        for request in prefilling:
            if request.status is Status.RUNNING:
                planner.extend(request, request.num_pending, step)
        while (head := self.waiting.head) and planner.admit(head, step):
            pass
        return self._close(step)

    def apply(self, result: StepResult) -> Applied:
        """Take in what a step sampled; results come in order. One applied before is ignored.

        Raises ValueError for a step that is not the next one in flight.
        """
        if result.step <= self._applied:
            return Applied()
        if not self._in_flight or self._in_flight[0][0].step != result.step:
            raise ValueError(f"step {result.step} applied after {self._applied}")
        plan, requests = self._in_flight.popleft()
        self._applied = plan.step
        self.pool.apply(plan.step)
        for request_id, error in result.errors.items():
            self.end(request_id, FinishReason.ERROR, error=error)
        sampled = {token.request_id: token for token in result.sampled}
        running, finished = Status.RUNNING, Status.FINISHED
        advanced: list[tuple[Request, tuple[int, ...]]] = []
        for request, chunk in zip(requests, plan.chunks, strict=True):
            if request.status is running and request.admitted_step <= plan.step:
                request.num_computed = chunk.start + chunk.count
            if chunk.samples and (tokens := self._receive(request, sampled.get(request.id))):
                advanced.append((request, tokens))
            request.in_flight -= 1
            if not request.in_flight and request.status is finished:
                self._ended.append(request)
        return Applied(advanced)

    # --- views --------------------------------------------------------------------------------

    def rows(self) -> list[View]:
        """Who runs, oldest first."""
        short = set(self.last.short)
        return [
            view(row, Reason.NO_BLOCKS if row.id in short else None) for row in self.running.rows
        ]

    def line(self, count: int) -> list[View]:
        """The first `count` that wait, in order, each with the reason."""
        head = self.waiting.head
        return [view(request, self._why(request, head)) for request in self.waiting.first(count)]

    def _why(self, request: Request, head: Request | None) -> Reason:
        if request.held:
            return Reason.HELD
        if request is not head:
            return Reason.BEHIND
        passed = self.last.passed
        return passed[1] if passed and passed[0] == request.id else Reason.NEW

    # --- how counts change ----------------------------------------------------------------------

    def _close(self, step: Decision) -> StepPlan | None:
        if not step.chunks and not self.running.released:
            return None
        plan = StepPlan(
            step.step,
            tuple(self.running.released),
            tuple(step.admitted),
            tuple(step.chunks),
            tuple(self.running.viewers.items()),
        )
        self.running.released.clear()
        self.running.viewers.clear()
        self._planned = step.step
        self._in_flight.append((plan, step.requests))
        return plan

    def _receive(self, request: Request, sampled: Sampled | None) -> tuple[int, ...]:
        """Take in the token of a chunk that samples: the new tokens, or none.

        One that ended by itself or by an error has no token: the worker passes it over. One that
        was ended from outside gets it still, since the log has it.
        """
        if sampled and sampled.position == len(request.tokens) - request.num_prompt:
            request.tokens.append(sampled.token)
            request.num_promised -= 1
            reason = sampled.finish or request.own_end
            if reason and request.status is not Status.FINISHED:
                self._finish(request, reason)
            return (sampled.token,)
        if request.status is not Status.FINISHED:
            self._finish(request, FinishReason.ERROR, error="the worker lost a token")
        request.num_promised -= 1
        return ()

    def _finish(
        self, request: Request, reason: FinishReason, kept: int | None = None, error: str = ""
    ) -> None:
        if request.status is Status.RUNNING:
            self.running.vacate(request, self._planned)
        else:
            self.waiting.remove(request)
        request.move_to(Status.FINISHED)
        request.finish_reason, request.kept, request.error = reason, kept, error
        if not request.in_flight:
            self._ended.append(request)

    def _forget_steps(self) -> None:
        """No result of a step in flight will come: nothing is promised, nothing is touched."""
        self._applied = self._planned
        self.pool.apply(self._planned)
        self.running.released.clear()
        while self._in_flight:
            _, requests = self._in_flight.popleft()
            for request in requests:
                request.num_promised = 0
                request.in_flight -= 1
                if not request.in_flight and request.status is Status.FINISHED:
                    self._ended.append(request)


def _max_blocks(request: Request, pool: BlockPool) -> int:
    """The last token of the longest answer is never computed."""
    return pool.blocks_for(request.max_length - 1)
