"""How line and rows look to a person: who is where, why, and for how long."""

from dataclasses import dataclass

from common.messages import RequestId
from scheduler.core.cost import CostModel
from scheduler.core.decision import Decision, Reason
from scheduler.core.prefix_cache import PrefixCache
from scheduler.core.request import Request, Status
from scheduler.core.running import Running
from scheduler.core.waiting import WaitingLine

LACKS_MEMORY = {Reason.NO_SEAT, Reason.NO_BLOCKS, Reason.CLOSED, Reason.SHORTAGE}


@dataclass(frozen=True, slots=True)
class View:
    """A request as a person sees it."""

    request_id: RequestId
    status: Status
    tenant: str
    priority: int
    num_prompt: int
    num_output: int
    num_computed: int
    num_blocks: int
    preemptions: int
    reason: Reason | None  # None: it takes part
    num_host_blocks: int = 0
    num_cached: int = 0
    num_missing: int = 0  # blocks, for the head of the line
    blocker: RequestId | None = None  # who is first in line, or computes its prefix


def view(
    request: Request,
    reason: Reason | None,
    num_missing: int = 0,
    blocker: RequestId | None = None,
) -> View:
    return View(
        request.id,
        request.status,
        request.tenant,
        request.priority,
        request.num_prompt,
        request.num_output,
        request.num_saved or request.num_computed,
        len(request.block_table),
        request.preemptions,
        reason,
        len(request.host_blocks),
        request.num_cached,
        num_missing,
        blocker,
    )


def rows(running: Running, step: Decision) -> list[View]:
    """Who runs, in rank; with a reason where the step went without it."""
    passed = dict(step.passed) | dict.fromkeys(step.short, Reason.NO_BLOCKS)
    return [view(row, passed.get(row.id)) for row in running.rows]


def line(waiting: WaitingLine, cache: PrefixCache | None, step: Decision, count: int) -> list[View]:
    """The first `count` that wait, in order, each with the reason."""
    head, passed = waiting.head, dict(step.passed)
    return [_view(request, head, waiting, cache, passed, step) for request in waiting.first(count)]


def _view(
    request: Request,
    head: Request | None,
    waiting: WaitingLine,
    cache: PrefixCache | None,
    passed: dict[RequestId, Reason],
    step: Decision,
) -> View:
    aside = waiting.aside(request)
    if aside is Reason.PREFIX:
        content = waiting.awaited(request)
        computes = cache.who_computes(content) if cache and content else None
        return view(request, aside, blocker=computes.id if computes else None)
    if aside:
        return view(request, aside)
    if request is not head:
        return view(request, Reason.BEHIND, blocker=head.id if head else None)
    reason = passed.get(request.id, Reason.NEW)
    missing = step.num_missing if reason is Reason.NO_BLOCKS else 0
    return view(request, reason, num_missing=max(0, missing))


def lacks_memory(waiting: WaitingLine, step: Decision) -> bool:
    """Whether the head of the line waits for somebody to leave, and not for a turn only."""
    head = waiting.head
    return head is not None and dict(step.passed).get(head.id) in LACKS_MEMORY


def predicted_wait(
    cost: CostModel,
    step: Decision,
    *,
    backlog: int,  # tokens that line and rows have to catch up
    room: int,  # tokens that a step has for them
    num_ends: int,  # answers that have to end before
    num_running: int,
    answer_tokens: float,  # that answers have in the mean
) -> float:
    """Seconds until one that came now would start.

    The prompts before it have to be computed, beside those that decode; and where seats or blocks
    are all taken, so many answers have to end as stand before it, and one more.
    """
    decoding = Decision(0, 0, num_decoding=step.num_decoding, decode_context=step.decode_context)
    step_seconds = cost.seconds(decoding)
    computing = backlog * (cost.seconds_per_prompt_token() + step_seconds / room)
    return computing + num_ends * answer_tokens / max(1, num_running) * step_seconds
