"""Who is with one worker's scheduler, in line or in a row, and how requests come and go."""

from collections import deque
from dataclasses import dataclass
from itertools import islice

from common.messages import FinishReason, GatewayId, RequestId, StepPlan
from scheduler.core.block_pool import BlockPool, Blocks, blocks_for
from scheduler.core.decision import Decision
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
    max_running: int  # requests that have rows at one time, but for those about to leave
    depth: int  # steps planned ahead of the one that computes
    max_request_tokens: int  # prompt and answer of one request
    max_preemptions: int = 3  # of one request; then it comes back only where it can stay
    max_rows: int = 0  # that the worker holds, all included; 0: max_running


@dataclass(frozen=True, slots=True)
class Memory:
    """What a worker has for K and V."""

    num_blocks: int
    block_size: int  # tokens
    num_host_blocks: int = 0


class Members:
    """What `Scheduler` schedules: its requests, its memory, and the steps in flight."""

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
            index = PrefixIndex(memory.num_blocks)
            self.pool = BlockPool(memory.num_blocks, memory.block_size, index)
            if choices.prefix_cache:
                self.cache = PrefixCache(index, memory.block_size, hash_key)
        self._is_fair = choices.policy == "fair"
        line = FairLine(_place, self.shares) if self._is_fair else Heap(_place)
        self.waiting = WaitingLine(line, self.shares if self._is_fair else None)
        if self.cache:
            self.cache.on_resolved = self.waiting.unpark
        self.running = Running(
            self.pool,
            0 if choices.preemption == "never" else limits.max_preemptions,
            limits.max_running,
            limits.max_rows or limits.max_running,
            limits.max_step_tokens,
            limits.depth,
        )
        self._planner = Planner(
            choices,
            self.pool,
            self.host,
            self.cache,
            self.running,
            self.waiting,
            self.shares,
        )
        self._planned = 0  # the last step planned
        self._applied = 0  # the last step applied
        self._in_flight: deque[tuple[StepPlan, Decision]] = deque()
        self._ended: list[Request] = []
        self._serial = 0
        self._num_answers = 0
        self.answer_tokens = 0.0  # mean length of answers that ended of late

    def never_fits(self, request: Request) -> str | None:
        """Why the request can never run here, with the numbers; None if it can."""
        if request.num_prompt == 0:
            return "the prompt is empty"
        length, most = request.max_length, self.limits.max_request_tokens
        if length > most:
            return f"{length} tokens of prompt and answer are more than the {most} of a request"
        pool = self.pool
        size = pool.num_blocks * pool.block_size
        if length - 1 > size:
            return f"{length} tokens of prompt and answer are more than the {size} of the cache"
        if self._max_blocks(request) > pool.num_blocks:
            return (
                f"reservation={self.choices.reservation} takes more for {length} tokens of prompt "
                f"and answer than the {size} of the cache"
            )
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
            self._hand_over(request)

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
            self._hand_over(request)

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
        found = (request for request in self.waiting if self._is_stealable(request))
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
        return request.status is Status.WAITING and not request.in_flight

    def _forget_history(self, request: Request) -> None:
        """What it was here means nothing to another scheduler; how often it had to leave does."""
        request.rank, request.is_returning = (), False

    def drain_tenant(self, tenant: str) -> None:
        """Start nothing of the tenant any more; what runs ends. Until `undrain_tenant`."""
        self.waiting.drain(tenant)

    def undrain_tenant(self, tenant: str) -> None:
        self.waiting.undrain(tenant)

    def _finish(
        self, request: Request, reason: FinishReason, kept: int | None = None, error: str = ""
    ) -> None:
        if self.cache and reason is FinishReason.ERROR:
            self.cache.distrust(request)
        self._leave(request)
        request.move_to(Status.FINISHED)
        request.finish_reason, request.kept, request.error = reason, kept, error
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._num_answers += 1
            weight = max(ENDS_WEIGHT, 1 / self._num_answers)
            self.answer_tokens += (request.num_output - self.answer_tokens) * weight

    def _hand_over(self, request: Request) -> None:
        """To `take_ended`, if it is finished, and the last step in flight that named it applied."""
        if request.status is Status.FINISHED and not request.in_flight:
            self._ended.append(request)

    def _leave(self, request: Request) -> None:
        """Rows and line know it no more, and it owns nothing."""
        if request.status is Status.RUNNING:
            self._planner.lose_row(request, self._planned)
        else:
            self.waiting.remove(request)
        if request.status is Status.SWAPPED:
            self._planner.drop_saved(request)

    def _forget_steps(self) -> None:
        """No result of a step in flight will come: nothing is promised, nothing is touched."""
        self._applied = self._planned
        self.pool.apply(self._planned)
        self.running.released.clear()
        while self._in_flight:
            _, step = self._in_flight.popleft()
            for request in step.requests:
                if request.in_flight:
                    request.num_promised = request.num_filling = 0
                    self._hand_over(request)

    def _max_blocks(self, request: Request) -> int:
        """That it can ever have."""
        name = self.choices.reservation if self.choices.kv == "reserved" else "exact"
        most = RESERVATION[name](request, self.limits.max_request_tokens)
        return blocks_for(most, self.pool.block_size)


def _place(request: Request) -> Place:
    return request.place
