"""Lengths of prompts and answers as text: one number, or a distribution to draw from."""

import math
import re
from collections.abc import Callable
from random import Random

Draw = Callable[[Random], int]
MAX_SIGMA = 10.0  # beyond it no number is left that could be a length
FORMS = "N, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA or lognormal:mean=MEAN:sd=SPREAD"
MOMENTS = re.compile(r"lognormal:mean=(.+):sd=(.+)")


def lengths(text: str) -> Draw:
    """`128`, `uniform:64:256`, `lognormal:512:0.8`: at least one token each; raises ValueError."""
    try:
        draw = _draw(text)
    except (ValueError, OverflowError):
        draw = None
    if draw is None:
        raise ValueError(f"lengths {text!r} are none of {FORMS}")
    return draw


def _draw(text: str) -> Draw | None:
    if moments := MOMENTS.fullmatch(text):
        return _of_moments(*(_number(part) for part in moments.groups()))
    kind, *numbers = text.split(":") if ":" in text else ("fixed", text)
    match kind, [_number(number) for number in numbers]:
        case "fixed", [value] if value >= 1:
            return lambda random: int(value)
        case "uniform", [low, high] if 1 <= low <= high:
            return lambda random: random.randint(int(low), int(high))
        case "lognormal", [median, sigma] if median >= 1 and sigma <= MAX_SIGMA:
            return _lognormal(math.log(median), sigma)
    return None


def _of_moments(mean: float, spread: float) -> Draw | None:
    """The lognormal distribution with this mean and standard deviation."""
    if mean < 1:
        return None
    variance = math.log1p((spread / mean) ** 2)
    return _lognormal(math.log(mean) - variance / 2, math.sqrt(variance))


def _lognormal(mu: float, sigma: float) -> Draw:
    return lambda random: max(1, round(random.lognormvariate(mu, sigma)))


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError
    return value
