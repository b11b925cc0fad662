"""Workloads that are made: arrivals at random, lengths and tenants by their distributions."""

import math
from collections.abc import Callable, Mapping
from random import Random
from typing import TypeVar

from common.lengths import Draw
from common.lengths import lengths as parse_lengths
from scheduler.simulation.errors import InputError
from scheduler.simulation.workload import Arrival

T = TypeVar("T")


def make_workload(
    count: int,
    *,
    gap: Callable[[Random], float],
    prompt_tokens: Draw,
    output_tokens: Draw,
    tenants: Mapping[str, float],
    priorities: Mapping[int, float],
    prefix_tokens: int,
    seed: int,
) -> list[Arrival]:
    """`count` arrivals. Each kind of figure is drawn from a stream of its own.

    So a change of, say, lengths leaves times and tenants as they were.
    """
    gaps, prompts, outputs, names, levels = (Random(f"{seed}.{kind}") for kind in range(5))
    arrivals, at = [], 0.0
    for _ in range(count):
        at += gap(gaps)
        arrivals.append(
            Arrival(
                at,
                prompt_tokens(prompts),
                output_tokens(outputs),
                _chosen(tenants, names) or "anonymous",
                _chosen(priorities, levels) or 0,
                prefix_tokens=prefix_tokens,
            )
        )
    return arrivals


def gaps(kind: str, rate: float, variation: float) -> Callable[[Random], float]:
    """Times between arrivals, with mean 1/rate.

    `poisson`: exponential. `bursty`: gamma, with the coefficient of variation `variation`; above 1,
    many gaps are short and few are long. `even`: all equal.
    """
    if kind == "poisson":
        return lambda random: random.expovariate(rate)
    if kind == "bursty":
        shape = 1 / variation**2
        return lambda random: random.gammavariate(shape, 1 / (rate * shape))
    return lambda random: 1 / rate


def lengths(text: str) -> Draw:
    """As `common/lengths.py` has them; raises InputError."""
    try:
        return parse_lengths(text)
    except ValueError as error:
        raise InputError(str(error)) from None


def shares(text: str) -> dict[str, float]:
    """`alice=3,bob=1`: names, each with a share above 0."""
    found = {}
    for part in filter(None, text.split(",")):
        name, _, share = part.partition("=")
        try:
            found[name.strip()] = float(share or 1)
        except ValueError:
            raise InputError(f"{part!r} is not NAME=SHARE") from None
        if not 0 < found[name.strip()] < math.inf:
            raise InputError(f"the share of {name!r} is not above 0")
    return found


def levels_of(text: str) -> dict[int, float]:
    """`0=9,5=1`: priorities, each with a share above 0."""
    found = {}
    for name, share in shares(text).items():
        try:
            found[int(name)] = share
        except ValueError:
            raise InputError(f"{name!r} is no priority") from None
    return found


def _chosen(by_share: Mapping[T, float], random: Random) -> T | None:
    return random.choices(list(by_share), list(by_share.values()))[0] if by_share else None
