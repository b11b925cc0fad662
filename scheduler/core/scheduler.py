"""Continuous batching for one worker. Pure and synchronous: no I/O, no clock, no randomness."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from common.messages import (
    BlockId,
    Chunk,
    FinishReason,
    GatewayId,
    RequestId,
    Sampled,
    StepPlan,
    StepResult,
)
from scheduler.core.block_pool import BlockPool
from scheduler.core.decision import Decision, Reason, View, view
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
        self.running = Running(limits.max_preemptions)
        self.last = Decision(step=0, tokens_left=limits.max_step_tokens)  # by `schedule`
        self._planned = 0  # the last step planned
        self._applied = 0  # the last step applied
        self._in_flight: deque[tuple[StepPlan, list[Request]]] = deque()
        self._released: list[RequestId] = []  # rows that the worker has yet to forget
        self._viewers: dict[RequestId, tuple[GatewayId, ...]] = {}  # that it has yet to hear of
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
            self._vacate(request)
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
        """Move it to where the policy puts it now, in line or among the running."""
        request = self.requests.get(request_id)
        if not request or request.status is Status.FINISHED:
            return
        queue = self.running if request.status is Status.RUNNING else self.waiting
        queue.remove(request)
        request.priority = priority
        request.place = (*self.strategies.place(request), request.place[-1])
        queue.add(request)

    def set_gateways(self, request_id: RequestId, gateways: tuple[GatewayId, ...]) -> None:
        """Who shows its tokens from the next plan on."""
        if request := self.requests.get(request_id):
            request.gateways = gateways
            if request.status is Status.RUNNING:
                self._viewers[request_id] = gateways

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
            self._vacate(request)
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
        step = self.last = Decision(self._planned + 1, self.limits.max_step_tokens)
        prefilling = []
        for request in self.running.rows:  # victims are younger: they leave ahead of this loop
            if request.num_pending > 1:
                prefilling.append(request)
            else:
                self._extend(request, 1, step)
        for request in prefilling:
            if request.status is Status.RUNNING:
                self._extend(request, request.num_pending, step)
        while (head := self.waiting.head) and self._admit(head, step):
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

    # --- one decision each --------------------------------------------------------------------

    def _extend(self, request: Request, pending: int, step: Decision) -> None:
        """Plan the next chunk of one that runs, if tokens and blocks last."""
        if not step.tokens_left or request.is_all_promised:
            return
        count = 1 if pending == 1 else self.strategies.chunk(pending, step.tokens_left)
        stop, blocks = request.num_planned + count, request.block_table
        if stop <= len(blocks) * self.pool.block_size:
            self._plan_chunk(request, count, (), step)
            return
        missing = self.pool.blocks_for(stop) - len(blocks)
        if self._make_room(request, missing, step):
            taken = self.pool.take(missing)
            self.running.grow(request, taken)
            self._plan_chunk(request, count, taken, step)

    def _make_room(self, request: Request, missing: int, step: Decision) -> bool:
        """Whether the blocks are free now. If not, preempt younger ones until they will be.

        What older requests wait for in this step is left to them. The youngest of all preempts
        nobody, itself neither: it keeps what it has computed and waits.
        """
        pool, running = self.pool, self.running
        while (supply := pool.num_expected + running.num_leaving - step.num_claimed) < missing:
            victim = running.victim()
            if victim is request:
                break
            self._preempt(victim, step)
        if missing <= min(pool.num_free, supply):
            return True
        step.num_claimed += missing
        step.short.append(request.id)
        return False

    def _preempt(self, victim: Request, step: Decision) -> None:
        """Take its row and its blocks. It goes back to its place in line and computes anew."""
        self._vacate(victim)
        victim.preemptions += 1
        victim.move_to(Status.WAITING)
        self.waiting.add(victim)
        step.preempted.append(victim.id)

    def _admit(self, request: Request, step: Decision) -> bool:
        """Start the row of the first in line, with the blocks of all its known tokens."""
        count = self.strategies.chunk(request.num_pending, step.tokens_left)
        missing = self.pool.blocks_for(self.strategies.reserve(request))
        if obstacle := self._obstacle(request, count, missing, step):
            step.passed = (request.id, obstacle)
            return False
        self.waiting.remove(request)
        request.move_to(Status.RUNNING)
        request.admitted_step = step.step
        blocks = self.pool.take(missing)
        request.block_table = list(blocks)
        self.running.add(request)
        step.admitted.append(request.row_start())
        self._plan_chunk(request, count, blocks, step)
        return True

    def _obstacle(
        self, request: Request, count: int, missing: int, step: Decision
    ) -> Reason | None:
        pool, running = self.pool, self.running
        # One more block for each that grows, or the newcomer would soon be preempted again.
        headroom = running.num_growing
        checks = (
            (not (step.preempted or step.short), Reason.SHORTAGE),
            (request.num_promised == 0, Reason.PROMISED),
            (self.strategies.may_join(len(running)), Reason.CLOSED),
            (len(running) < self.limits.max_running, Reason.NO_SEAT),
            (count > 0, Reason.NO_TOKENS),
            (missing + headroom <= pool.num_free, Reason.NO_BLOCKS),
        )
        for is_fine, reason in checks:
            if not is_fine:
                return reason
        keeps_word = running.keeps_word(request, pool.num_expected)
        return None if keeps_word else Reason.NO_BLOCKS

    def _plan_chunk(
        self, request: Request, count: int, blocks: tuple[BlockId, ...], step: Decision
    ) -> None:
        start = request.num_planned
        stop = request.num_planned = start + count
        samples = stop == len(request.tokens) + request.num_promised
        step.chunks.append(Chunk(request.id, start, count, blocks, samples))
        step.requests.append(request)
        step.tokens_left -= count
        request.in_flight += 1
        if samples:
            request.num_promised += 1
            if request.is_all_promised:
                self.running.num_leaving += len(request.block_table)

    def _close(self, step: Decision) -> StepPlan | None:
        if not step.chunks and not self._released:
            return None
        plan = StepPlan(
            step.step,
            tuple(self._released),
            tuple(step.admitted),
            tuple(step.chunks),
            tuple(self._viewers.items()),
        )
        self._released.clear()
        self._viewers.clear()
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
            self._vacate(request)
        else:
            self.waiting.remove(request)
        request.move_to(Status.FINISHED)
        request.finish_reason, request.kept, request.error = reason, kept, error
        if not request.in_flight:
            self._ended.append(request)

    def _vacate(self, request: Request) -> None:
        """Take its row and its blocks; those are free when no step in flight may touch them."""
        self.running.remove(request)
        self.pool.give_back(request.block_table, self._planned)
        request.block_table = []
        request.num_computed = request.num_planned = 0
        self._released.append(request.id)
        self._viewers.pop(request.id, None)

    def _forget_steps(self) -> None:
        """No result of a step in flight will come: nothing is promised, nothing is touched."""
        self._applied = self._planned
        self.pool.apply(self._planned)
        self._released.clear()
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
