"""Continuous batching for one worker. Pure and synchronous: no I/O, no clock, no randomness."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from common.messages import (
    FinishReason,
    GatewayId,
    RequestId,
    Sampled,
    StepPlan,
    StepResult,
)
from scheduler.core.block_pool import BlockPool, Blocks, blocks_for
from scheduler.core.cost import CostModel
from scheduler.core.decision import Decision, Reason, View, view
from scheduler.core.host_pool import HostPool
from scheduler.core.lines import FairLine, Heap
from scheduler.core.planner import Planner
from scheduler.core.prefix_cache import PrefixCache
from scheduler.core.prefix_index import PrefixIndex
from scheduler.core.range_pool import RangePool
from scheduler.core.request import Place, Request, Status
from scheduler.core.running import Running
from scheduler.core.shares import Shares
from scheduler.core.strategies import RESERVATION, Choices, place
from scheduler.core.waiting import WaitingLine

ENDS_WEIGHT = 0.05  # of the newest end in the mean length of answers


@dataclass(frozen=True, slots=True)
class Limits:
    max_step_tokens: int  # tokens that one forward pass computes
    max_running: int  # requests that have rows at one time
    depth: int  # steps planned ahead of the one that computes
    max_request_tokens: int  # prompt and answer of one request
    max_preemptions: int = 3  # of one request; then it comes back only where it can stay


@dataclass(frozen=True, slots=True)
class Memory:
    """What a worker has for K and V."""

    num_blocks: int
    block_size: int  # tokens
    num_host_blocks: int = 0


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
        self,
        limits: Limits,
        memory: Memory,
        choices: Choices | None = None,
        shares: Shares | None = None,
        hash_key: bytes = b"",
    ) -> None:
        """`shares` belongs to the schedulers of all workers; `hash_key`: secret, up to 64 bytes."""
        self.limits = limits
        self.choices = choices = choices or Choices()
        self.shares = shares or Shares()
        self.requests: dict[RequestId, Request] = {}  # all until `take_ended` or `strand`
        self.host = HostPool(memory.num_host_blocks)
        self.cache: PrefixCache | None = None
        self.pool: Blocks
        if choices.kv == "reserved":
            self.pool = RangePool(memory.num_blocks, memory.block_size)
        else:
            index = PrefixIndex()
            self.pool = BlockPool(memory.num_blocks, memory.block_size, index)
            if choices.prefix_cache:
                self.cache = PrefixCache(index, memory.block_size, hash_key)
        self._is_fair = choices.policy == "fair"
        line = FairLine(_place, self.shares) if self._is_fair else Heap(_place)
        self.waiting = WaitingLine(line)
        if self.cache:
            self.cache.on_resolved = self.waiting.unpark
        self.running = Running(
            self.pool, 0 if choices.preemption == "never" else limits.max_preemptions
        )
        self.cost = CostModel()
        self._planner = Planner(
            choices,
            self.pool,
            self.host,
            self.cache,
            self.running,
            self.waiting,
            self.shares,
            limits.max_running,
        )
        self.last = Decision(0, limits.max_step_tokens)  # by `schedule`
        self._planned = 0  # the last step planned
        self._applied = 0  # the last step applied
        self._in_flight: deque[tuple[StepPlan, Decision]] = deque()
        self._ended: list[Request] = []
        self._serial = 0
        self._answer_tokens = 0.0  # mean length of answers that ended of late

    # --- requests come and go -----------------------------------------------------------------

    def never_fits(self, request: Request) -> str | None:
        """Why the request can never run here, with the numbers; None if it can."""
        if request.num_prompt == 0:
            return "the prompt is empty"
        length, most = request.max_length, self.limits.max_request_tokens
        if length > most:
            return f"{length} tokens of prompt and answer are more than the {most} of a request"
        pool = self.pool
        if self._max_blocks(request) > pool.num_blocks:
            size = pool.num_blocks * pool.block_size
            return f"{length} tokens of prompt and answer are more than the {size} of the cache"
        most = self.limits.max_step_tokens
        if self.choices.prefill != "chunked" and length > most:
            return (
                f"{length} tokens of prompt and answer are more than the {most} of a step, "
                f"and prefill={self.choices.prefill} cuts no prompt"
            )
        return None

    def add(self, request: Request) -> None:
        """Put the request into the line. A known id is ignored: streams deliver at least once.

        One that comes with a complete answer, from a worker that was lost, ends at once.
        """
        if request.id in self.requests:
            return
        self._serial += 1
        request.max_blocks = self._max_blocks(request)
        request.place = place(request, self.choices, self._serial)
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
        self._leave(request)
        if request.status is not Status.WAITING:
            request.move_to(Status.WAITING)
        request.held, request.is_returning = True, False
        self.waiting.add(request)

    def release(self, request_id: RequestId) -> None:
        request = self.requests.get(request_id)
        if request and request.held and request.status is not Status.FINISHED:
            self.waiting.remove(request)
            request.held = False
            self.waiting.add(request)

    def set_priority(self, request_id: RequestId, priority: int) -> None:
        """Move it to where the policy puts it now, if it waits.

        One that was admitted keeps its rank: others were admitted relying on it
        (`Running.keeps_word`).
        """
        request = self.requests.get(request_id)
        if not request or request.status is Status.FINISHED:
            return
        request.priority = priority
        waits = request.status is not Status.RUNNING
        if waits:
            self.waiting.remove(request)
        request.place = place(request, self.choices, int(request.place[-1]))
        if waits:
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
        stranded = []
        for request in [*self.running.rows, *self.waiting]:
            self._leave(request)
            if request.status is not Status.WAITING:
                request.move_to(Status.WAITING)
            self._forget_history(request)
            stranded.append(request)
            del self.requests[request.id]
        self._forget_steps()
        return stranded

    def stealable(self, count: int) -> list[Request]:
        """The first `count` in line of which the worker has nothing: `take_back` gives them."""
        found = (
            request for request in self.waiting.first(4 * count) if self._is_stealable(request)
        )
        return list(islice(found, count))

    def take_back(self, request_id: RequestId) -> Request | None:
        """Give up one that waits, for another worker; None if this one has part of it."""
        request = self.requests.get(request_id)
        if not request or not self._is_stealable(request):
            return None
        self.waiting.remove(request)
        self._forget_history(request)
        return self.requests.pop(request_id)

    def _is_stealable(self, request: Request) -> bool:
        return (
            request.status is Status.WAITING and not request.in_flight and not request.num_promised
        )

    def _forget_history(self, request: Request) -> None:
        """What it was here means nothing to another scheduler; how often it had to leave does."""
        request.rank, request.is_returning = (), False

    def drain_tenant(self, tenant: str) -> None:
        """Start nothing of the tenant any more; what runs ends. Until `undrain_tenant`."""
        self.waiting.drain(tenant)

    def undrain_tenant(self, tenant: str) -> None:
        self.waiting.undrain(tenant)

    # --- steps --------------------------------------------------------------------------------

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
        step = self.last = Decision(self._planned + 1, most, most)
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
        prefilling = []
        extend = self._planner.extend
        for request in self.running.rows:  # victims stand behind: they leave ahead of this loop
            if request.num_pending > 1:
                prefilling.append(request)
            else:
                extend(request, 1, step)
        self._bound_prefill(step, prefilling[0].num_planned if prefilling else 0)
        for request in prefilling:
            if request.status is Status.RUNNING:
                extend(request, request.num_pending, step)

    def _bound_prefill(self, step: Decision, start: int) -> None:
        """Leave to prompts only what the latency of those that decode allows."""
        target = self.choices.itl_target_seconds
        if target and step.num_decoding:
            room = self.cost.room(step, start, target)
            left = min(step.tokens_left, max(room, self.pool.block_size))  # nobody starves
            step.budget -= step.tokens_left - left
            step.tokens_left = left

    def apply(self, result: StepResult) -> Applied:
        """Take in what a step sampled; results come in order. One applied before is ignored.

        Raises ValueError for a step that is not the next one in flight.
        """
        if result.step <= self._applied:
            return Applied()
        plan, step = self._land(result)
        sampled = {token.request_id: token for token in result.sampled}
        running, finished = Status.RUNNING, Status.FINISHED
        cache, block_size = self.cache, self.pool.block_size
        advanced: list[tuple[Request, tuple[int, ...]]] = []
        for request, chunk in zip(step.requests, plan.chunks, strict=True):
            if request.status is running and request.admitted_step <= plan.step:
                request.num_computed = computed = chunk.start + chunk.count
                if cache and computed // block_size > request.num_published:
                    cache.publish(request)
            if chunk.samples and (tokens := self._receive(request, sampled.get(request.id))):
                advanced.append((request, tokens))
            request.in_flight -= 1
            if not request.in_flight and request.status is finished:
                self._ended.append(request)
        return Applied(advanced)

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

    # --- views --------------------------------------------------------------------------------

    def rows(self) -> list[View]:
        """Who runs, in rank."""
        passed = dict(self.last.passed) | dict.fromkeys(self.last.short, Reason.NO_BLOCKS)
        return [view(row, passed.get(row.id)) for row in self.running.rows]

    def line(self, count: int) -> list[View]:
        """The first `count` that wait, in order, each with the reason."""
        head = self.waiting.head
        return [self._view(request, head) for request in self.waiting.first(count)]

    def _view(self, request: Request, head: Request | None) -> View:
        aside = self.waiting.aside(request)
        if aside is Reason.PREFIX:
            computes = self.cache.whom_it_waits_for(request) if self.cache else None
            return view(request, aside, blocker=computes.id if computes else None)
        if aside:
            return view(request, aside)
        if request is not head:
            return view(request, Reason.BEHIND, blocker=head.id if head else None)
        reason = dict(self.last.passed).get(request.id, Reason.NEW)
        missing = self.last.num_missing if reason is Reason.NO_BLOCKS else 0
        return view(request, reason, num_missing=max(0, missing))

    def cached_tokens(self, request: Request) -> int:
        """How many of its first tokens this worker need not compute."""
        return len(self.cache.match(request)) * self.pool.block_size if self.cache else 0

    @property
    def backlog_tokens(self) -> int:
        """To be computed before line and rows have caught up."""
        rows = sum(row.num_pending for row in self.running.rows if row.num_pending > 1)
        return self.waiting.num_tokens + rows

    def predicted_wait(self) -> float:
        """Seconds until one that came now would start, as far as is known of the others.

        The prompts before it have to be computed, beside those that decode; and where seats or
        blocks are all taken, so many answers have to end as stand before it.
        """
        step = self.last
        decoding = Decision(
            0, 0, num_decoding=step.num_decoding, decode_context=step.decode_context
        )
        step_seconds = self.cost.seconds(decoding)
        backlog, rows = self.backlog_tokens, len(self.running)
        room = max(1, self.limits.max_step_tokens - step.num_decoding)
        computing = backlog * self.cost.seconds_per_prompt_token() + backlog / room * step_seconds
        ahead, head = self.waiting.num_ready, self.waiting.head
        reason = dict(step.passed).get(head.id) if head else None
        if reason not in (Reason.NO_SEAT, Reason.NO_BLOCKS, Reason.CLOSED, Reason.SHORTAGE):
            return computing
        ending = (ahead + 1) * self._answer_tokens / max(1, rows) * step_seconds
        return computing + ending

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
            tuple(step.swap_out),
            tuple(step.swap_in),
        )
        self.running.released.clear()
        self.running.viewers.clear()
        self._planned = step.step
        self._in_flight.append((plan, step))
        return plan

    def _receive(self, request: Request, sampled: Sampled | None) -> tuple[int, ...]:
        """Take in the token of a chunk that samples: the new tokens, or none.

        One that ended by itself or by an error has no token: the worker passes it over. One that
        was ended from outside gets it still, since the log has it.
        """
        if sampled and sampled.position == len(request.tokens) - request.num_prompt:
            request.tokens.append(sampled.token)
            request.num_promised -= 1
            if self._is_fair:
                self.shares.charge_output(request.tenant, 1)
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
        if self.cache and reason is FinishReason.ERROR:
            self.cache.distrust(request)
        self._leave(request)
        request.move_to(Status.FINISHED)
        request.finish_reason, request.kept, request.error = reason, kept, error
        self._answer_tokens += (request.num_output - self._answer_tokens) * ENDS_WEIGHT
        if not request.in_flight:
            self._ended.append(request)

    def _leave(self, request: Request) -> None:
        """Rows and line know it no more, and it owns nothing."""
        if request.status is Status.RUNNING:
            self._planner.lose_row(request, self._planned)
        else:
            self.waiting.remove(request)
        if request.status is Status.SWAPPED:
            self._planner.drop_saved(request)

    def _max_blocks(self, request: Request) -> int:
        """That it can ever have."""
        name = self.choices.reservation if self.choices.kv == "reserved" else "exact"
        most = RESERVATION[name](request, self.limits.max_request_tokens)
        return blocks_for(most, self.pool.block_size)

    def _forget_steps(self) -> None:
        """No result of a step in flight will come: nothing is promised, nothing is touched."""
        self._applied = self._planned
        self.pool.apply(self._planned)
        self.running.released.clear()
        while self._in_flight:
            _, step = self._in_flight.popleft()
            for request in step.requests:
                request.num_promised = 0
                request.in_flight -= 1
                if not request.in_flight and request.status is Status.FINISHED:
                    self._ended.append(request)


def _place(request: Request) -> Place:
    return request.place
