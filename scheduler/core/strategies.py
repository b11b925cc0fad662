"""The scheduler's choices: the settings, and what each value does, as a small function."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from scheduler.core.request import Place, Request


@dataclass(frozen=True, slots=True)
class Choices:
    """One scheme of the literature. ValueError where the parts contradict each other."""

    batching: str = "continuous"
    prefill: str = "chunked"
    kv: str = "paged"
    reservation: str = "exact"  # of kv=reserved
    preemption: str = "recompute"
    policy: str = "priority"
    aging_seconds: float = 30.0  # waiting time that outweighs a level of priority
    ttft_target_seconds: float = 2.0  # of policy=deadline
    prefix_cache: bool = True
    itl_target_seconds: float = 0.0  # 0: the step's size is not bounded by time

    def __post_init__(self) -> None:
        for name, table in TABLES.items():
            if getattr(self, name) not in table:
                raise ValueError(f"{name}={getattr(self, name)} is none of {', '.join(table)}")
        if self.kv == "reserved" and self.prefix_cache:
            raise ValueError("kv=reserved has a range for each request: prefix_cache must be off")
        if self.kv == "reserved" and self.preemption == "swap":
            raise ValueError("kv=reserved never runs short of blocks: preemption=swap has no use")
        if self.itl_target_seconds and self.prefill != "chunked":
            raise ValueError(f"prefill={self.prefill} cuts no prompt: itl_target has no use")


# --- Where a request stands ---------------------------------------------------------------------

# A place in line is a time, and never changes while the request waits: whoever comes a given time
# later stands behind, whatever its length or urgency. So nobody starves.


def _fcfs(request: Request, choices: Choices) -> float:
    del choices
    return request.arrival


def _priority(request: Request, choices: Choices) -> float:
    """A level of priority is worth so much waiting."""
    return request.arrival + request.priority * choices.aging_seconds


def _shortest(request: Request, choices: Choices) -> float:
    """A thousand tokens, of prompt and of the longest answer, are worth so much waiting."""
    return request.arrival + request.max_length / 1000 * choices.aging_seconds


def _deadline(request: Request, choices: Choices) -> float:
    """When its first token is due."""
    target = request.ttft_target
    return request.arrival + (choices.ttft_target_seconds if target is None else target)


POLICY: dict[str, Callable[[Request, Choices], float]] = {
    "fcfs": _fcfs,
    "priority": _priority,
    "fair": _priority,  # among the requests of one tenant; `lines.py` says which tenant is next
    "shortest": _shortest,
    "deadline": _deadline,
}


def place(request: Request, choices: Choices, serial: int) -> Place:
    return (POLICY[choices.policy](request, choices), serial)


# --- How much of a prompt a step computes -------------------------------------------------------


def _chunked(num_pending: int, tokens_left: int) -> int:
    """As much as the step has room for."""
    return min(num_pending, tokens_left)


def _whole(num_pending: int, tokens_left: int) -> int:
    """All or nothing."""
    return num_pending if num_pending <= tokens_left else 0


PREFILL: dict[str, Callable[[int, int], int]] = {
    "chunked": _chunked,
    "whole": _whole,
    "exclusive": _whole,
}


# --- How much memory an admission takes ---------------------------------------------------------


def _exact(request: Request, max_request_tokens: int) -> int:
    """What prompt and answer need if the answer's length is known; its last token is not stored."""
    del max_request_tokens
    return request.max_length - 1


def _power_of_two(request: Request, max_request_tokens: int) -> int:
    answer: int = 1 << (request.ending.max_tokens - 1).bit_length()
    return min(request.num_prompt + answer, max_request_tokens)


def _maximum(request: Request, max_request_tokens: int) -> int:
    del request
    return max_request_tokens


RESERVATION: dict[str, Callable[[Request, int], int]] = {
    "exact": _exact,
    "power_of_two": _power_of_two,
    "maximum": _maximum,
}


# --- Who may join -------------------------------------------------------------------------------


class Batching(Protocol):
    def may_join(self, request: Request, num_members: int) -> bool: ...

    def settle(self, *, may_grow: bool) -> None:
        """No more of the line is admitted in this step. `may_grow`: some could be in the next."""
        ...


class Continuous:
    """Whoever fits joins at any step."""

    def may_join(self, request: Request, num_members: int) -> bool:
        del request, num_members
        return True

    def settle(self, *, may_grow: bool) -> None:
        pass


class Static:
    """A batch is formed of those who wait, over as many steps as their prompts take, and closed.

    Until all its members have ended nobody joins; one that was preempted comes back.
    """

    def __init__(self) -> None:
        self.is_open = True

    def may_join(self, request: Request, num_members: int) -> bool:
        if not num_members:
            self.is_open = True
        return self.is_open or request.is_returning

    def settle(self, *, may_grow: bool) -> None:
        self.is_open = self.is_open and may_grow


BATCHING: dict[str, Callable[[], Batching]] = {"continuous": Continuous, "static": Static}

TABLES: dict[str, Collection[str]] = {
    "batching": BATCHING,
    "prefill": PREFILL,
    "kv": ("paged", "reserved"),
    "reservation": RESERVATION,
    "preemption": ("recompute", "swap", "never"),
    "policy": POLICY,
}
