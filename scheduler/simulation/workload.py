"""What a workload is made of: arrivals, each with its lengths, and the prompt of one as tokens."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from common.traces import HASHED_TOKENS

END_TOKEN = 0  # ends an answer that is shorter than its max_tokens
SHARED_TOKEN = 1  # all of a prefix that every prompt of a tenant begins with
FIRST_HASH = 2  # the token that stands for hash 0
FIRST_OWN = 1 << 30  # tokens of one request alone: of its prompt, and of its answer


@dataclass(slots=True)
class Arrival:
    """One request, and what only a simulator knows of it: how long its answer will be."""

    at: float  # seconds
    prompt_tokens: int
    output_tokens: int
    tenant: str = "anonymous"
    priority: int = 0
    max_tokens: int = 0  # that its client allows; 0: the length that the answer will have
    hashes: Sequence[int] = ()  # of each `HASHED_TOKENS` of the prompt, equal where prefixes are
    prefix_tokens: int = 0  # first ones, that all prompts of its tenant share
    name: str = ""  # as it was recorded; empty: it gets a number


def prompt(arrival: Arrival, serial: int) -> list[int]:
    """Token ids that equal those of another prompt exactly as far as the two prefixes are equal."""
    if arrival.hashes:
        whole = [h + FIRST_HASH for h in arrival.hashes for _ in range(HASHED_TOKENS)]
        return whole[: arrival.prompt_tokens]
    shared = min(arrival.prefix_tokens, arrival.prompt_tokens)
    return [SHARED_TOKEN] * shared + [own_token(serial)] * (arrival.prompt_tokens - shared)


def own_token(serial: int) -> int:
    return FIRST_OWN + serial


def select(
    arrivals: Sequence[Arrival], count: int, rate_scale: float, duration: float
) -> Iterator[Arrival]:
    """The first `count` (0: all) within `duration` seconds (0: without end), as they come.

    Where there are fewer, they come again and again, later and with other prompts. Gaps shrink by
    `rate_scale` first.
    """
    repeated = _repeated(arrivals) if count > len(arrivals) else iter(arrivals)
    for arrival in itertools.islice(repeated, count or len(arrivals)):
        at = arrival.at / rate_scale
        if duration and at > duration:
            return
        yield replace(arrival, at=at)


def _repeated(arrivals: Sequence[Arrival]) -> Iterator[Arrival]:
    """All of them, then all again with the mean gap between the last and the first of the next."""
    first, last = arrivals[0].at, arrivals[-1].at
    period = last - first + ((last - first) / (len(arrivals) - 1) if len(arrivals) > 1 else 1.0)
    num_hashes = max((max(a.hashes) + 1 for a in arrivals if a.hashes), default=0)
    for turn in itertools.count():
        for arrival in arrivals:
            hashes = tuple(h + turn * num_hashes for h in arrival.hashes)
            name = f"{arrival.name}#{turn}" if arrival.name and turn else arrival.name
            yield replace(arrival, at=arrival.at + turn * period, hashes=hashes, name=name)


def strictly_later(at: float, before: float) -> float:
    """`at`, or the next moment after `before`: no two requests arrive at once."""
    return at if at > before else math.nextafter(before, math.inf)
