"""The scheduler's choices, each a small function behind the name of its setting."""

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.core.request import Place, Request


def _continuous(num_running: int) -> bool:
    """Whoever fits joins at any step."""
    del num_running
    return True


def _chunked(num_pending: int, tokens_left: int) -> int:
    """As much of a prompt as the step has room for."""
    return min(num_pending, tokens_left)


def _paged(request: Request) -> int:
    """Blocks for all known tokens at once, so that nobody is preempted in mid-prompt."""
    return len(request.tokens)


def _fcfs(request: Request) -> Place:
    """First come, first served, among those of one priority."""
    return (request.priority, request.arrival)


BATCHING: dict[str, Callable[[int], bool]] = {"continuous": _continuous}
PREFILL: dict[str, Callable[[int, int], int]] = {"chunked": _chunked}
KV: dict[str, Callable[[Request], int]] = {"paged": _paged}
POLICY: dict[str, Callable[[Request], Place]] = {"fcfs": _fcfs}


@dataclass(frozen=True, slots=True)
class Strategies:
    may_join: Callable[[int], bool] = _continuous  # (rows running): whether one may be admitted
    chunk: Callable[[int, int], int] = _chunked  # (pending, left in the step): tokens to compute
    reserve: Callable[[Request], int] = _paged  # tokens whose blocks an admission takes
    place: Callable[[Request], Place] = _fcfs  # its rank in line, and against preemption

    @classmethod
    def named(cls, *, batching: str, prefill: str, kv: str, policy: str) -> "Strategies":
        """By the values of the settings; KeyError for one that does not exist."""
        return cls(BATCHING[batching], PREFILL[prefill], KV[kv], POLICY[policy])
