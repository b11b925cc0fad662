"""Whether to take a request now: a leader, room in the line, a wait that it outlives; pure.

A request that finds no worker is taken all the same: it waits in the stream, survives there, and
runs when one registers, which at a start or after a worker's death is a matter of seconds. Without
a scheduler nobody would even cancel it or keep its deadline, so then it is refused.
"""

import math
from dataclasses import dataclass

from common.bus import BusError, FullError
from common.messages import Submit
from gateway.errors import ApiError

RETRY_SECONDS = 2  # told where nothing better is known
MAX_RETRY_SECONDS = 300


@dataclass(frozen=True, slots=True)
class QueueLimits:
    max_queue: int  # submissions in line or running
    max_queue_tokens: int  # tokens that wait to be computed


@dataclass(frozen=True, slots=True)
class Load:
    """What is known of the pool, and what this gateway has added since it was known."""

    has_leader: bool
    num_open: int = 0  # submissions
    waiting_tokens: int = 0
    wait_seconds: float = 0.0  # predicted for a request that arrives now


class RefusedError(ApiError):
    """Not now: 429 where too much is in line, 503 where something is missing."""

    def __init__(self, message: str, status: int, code: str, retry_seconds: float) -> None:
        kind = "rate_limit_error" if status == 429 else "server_error"
        super().__init__(message, status=status, kind=kind, code=code)
        retry = max(math.ceil(retry_seconds), RETRY_SECONDS)
        self.retry_seconds = min(retry, MAX_RETRY_SECONDS)  # the Retry-After header


def num_tokens(submit: Submit) -> int:
    """Prompt tokens that its choices bring into the line."""
    return submit.n * sum(map(len, submit.prompts))


def refuse(submit: Submit, load: Load, limits: QueueLimits) -> RefusedError | None:
    """Why the request is not taken now; None: it is."""
    if not load.has_leader:
        return unavailable("No scheduler is active at the moment.", "no_scheduler")
    if load.num_open >= limits.max_queue:
        return _full(f"{load.num_open} requests are in line or running", load)
    # A request that is longer than the whole line may be still comes in when nobody waits.
    if load.waiting_tokens and load.waiting_tokens + num_tokens(submit) > limits.max_queue_tokens:
        return _full(f"{load.waiting_tokens} tokens wait in line", load)
    if submit.deadline_seconds is not None and load.wait_seconds > submit.deadline_seconds:
        return _full(f"its deadline of {submit.deadline_seconds:g} s would pass in line", load)
    return None


def refused_by_bus(error: BusError) -> RefusedError:
    """What to tell a client whose request the bus did not take."""
    if isinstance(error, FullError):
        return unavailable("The server has no memory left for new requests.", "no_memory")
    return unavailable("The request could not be handed on in time.", "unavailable")


def unavailable(message: str, code: str) -> RefusedError:
    return RefusedError(f"{message} Please retry.", 503, code, RETRY_SECONDS)


def _full(why: str, load: Load) -> RefusedError:
    message = (
        f"The request is not taken now: {why}. "
        f"The predicted wait is {load.wait_seconds:.1f} s. Please retry later."
    )
    return RefusedError(message, 429, "queue_full", load.wait_seconds)
