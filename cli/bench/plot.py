"""A picture of runs: throughput against latency, a line for each server, as SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from cli.bench.figures import Line, Spread
from cli.bench.options import Plan

ACROSS = "output tokens/s"
PANELS = ("TTFT p50, ms", "TPOT p50, ms")
WIDTH, HEIGHT = 460, 320  # of a panel's field
LEFT, TOP, BETWEEN, BELOW = 76, 64, 96, 60
MOST_TICKS = 6
LOG_FROM = 20.0  # largest by smallest value from which an axis is logarithmic
COLOURS = ("#0b62a4", "#d95f02", "#1b9e77", "#7b3fa0", "#b8860b", "#c2185b", "#4d4d4d")


@dataclass(frozen=True)
class Axis:
    """Values to lengths along a side; `ticks` are the values that are written there."""

    low: float
    high: float
    length: float
    is_log: bool
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        if self.is_log:
            return self.length * math.log(value / self.low) / math.log(self.high / self.low)
        return self.length * (value - self.low) / (self.high - self.low)


def axis(values: Sequence[float], length: float, *, may_be_log: bool) -> Axis:
    positive = [value for value in values if value > 0]
    if may_be_log and positive and max(positive) > LOG_FROM * min(positive):
        return _log_axis(min(positive), max(positive), length)
    step = nice_step(max(positive, default=1.0) / MOST_TICKS)
    count = math.ceil(max(positive, default=1.0) / step * (1 + 1e-9))
    ticks = tuple(step * number for number in range(count + 1))
    return Axis(0.0, ticks[-1], length, is_log=False, ticks=ticks)


def _log_axis(least: float, most: float, length: float) -> Axis:
    """From a tick to a tick, of 1, 2 and 5 times the powers of ten."""
    powers = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 2)
    candidates = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    low = max(value for value in candidates if value <= least)
    high = min(value for value in candidates if value >= most)
    ticks = tuple(value for value in candidates if low <= value <= high)
    return Axis(low, high, length, is_log=True, ticks=ticks)


def nice_step(least: float) -> float:
    """The smallest of 1, 2, 2.5 and 5 times a power of ten that is no smaller."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(
        digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= least * (1 - 1e-9)
    )


def plot(plan: Plan, found: Sequence[Line]) -> str:
    width = LEFT + len(PANELS) * WIDTH + (len(PANELS) - 1) * BETWEEN + 30
    height = TOP + HEIGHT + BELOW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_legend(plan),
    ]
    for number, name in enumerate(PANELS):
        parts += _panel(plan, found, name, LEFT + number * (WIDTH + BETWEEN))
    return "\n".join([*parts, "</svg>\n"])


def _legend(plan: Plan) -> list[str]:
    parts, x = [], float(LEFT)
    for number, (name, _) in enumerate(plan.servers):
        colour = _colour(number)
        parts.append(
            f'<line x1="{x}" y1="22" x2="{x + 26}" y2="22" stroke="{colour}" stroke-width="2.5"/>'
        )
        parts.append(f'<circle cx="{x + 13}" cy="22" r="4" fill="{colour}"/>')
        parts.append(_text(x + 34, 27, name))
        x += 58 + 8 * len(name)
    if plan.sweep:
        told = f"beside each point: {plan.sweep.name.replace('_', '-')}"
        parts.append(_text(x + 10, 27, told, fill="#666"))
    return parts


def _panel(plan: Plan, found: Sequence[Line], name: str, left: float) -> list[str]:
    shown = [line for line in found if ACROSS in line.figures and name in line.figures]
    across = axis([line.figures[ACROSS].high for line in shown], WIDTH, may_be_log=False)
    ends = [end for line in shown for end in (line.figures[name].low, line.figures[name].high)]
    up = axis(ends, HEIGHT, may_be_log=True)
    parts = _frame(across, up, name, left)
    for number, (server, _) in enumerate(plan.servers):
        mine = [line for line in shown if line.server == server]
        below = 16 if number % 2 else -7  # so that values of two lines do not lie on each other
        parts += _series(mine, name, (across, up), (left, below), _colour(number))
    return parts


def _frame(across: Axis, up: Axis, name: str, left: float) -> list[str]:
    bottom = TOP + HEIGHT
    parts = []
    for tick in across.ticks:
        x = left + across.at(tick)
        parts.append(_stroke(x, TOP, x, bottom + 5, "#e4e4e4"))
        parts.append(_text(x, bottom + 20, tick_text(tick), anchor="middle"))
    for tick in up.ticks:
        y = bottom - up.at(tick)
        parts.append(_stroke(left - 5, y, left + WIDTH, y, "#e4e4e4"))
        parts.append(_text(left - 9, y + 4.5, tick_text(tick), anchor="end"))
    parts.append(_stroke(left, bottom, left + WIDTH, bottom, "#333"))
    parts.append(_stroke(left, TOP, left, bottom, "#333"))
    parts.append(_text(left + WIDTH / 2, bottom + 44, ACROSS, anchor="middle"))
    title = name + (", logarithmic" if up.is_log else "")
    parts.append(_text(left, TOP - 12, title, weight="bold"))
    return parts


def _series(
    mine: Sequence[Line], name: str, axes: tuple[Axis, Axis], at: tuple[float, float], colour: str
) -> list[str]:
    (across, up), (left, below) = axes, at
    points = [
        (
            left + across.at(line.figures[ACROSS].median),
            TOP + HEIGHT - up.at(line.figures[name].median),
        )
        for line in mine
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for line, (x, y) in zip(mine, points, strict=True):
        parts += _ranges(line.figures[ACROSS], line.figures[name], across, up, (left, x, y), colour)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        if line.value is not None:
            parts.append(_text(x + 7, y + below, f"{line.value:g}", fill=colour, size=11))
    return parts


def _ranges(
    wide: Spread,
    high: Spread,
    across: Axis,
    up: Axis,
    place: tuple[float, float, float],
    colour: str,
) -> list[str]:
    """Whiskers from the least to the most, where runs were repeated."""
    left, x, y = place
    parts = []
    if wide.low < wide.high:
        parts.append(_stroke(left + across.at(wide.low), y, left + across.at(wide.high), y, colour))
    if high.low < high.high:
        bottom = TOP + HEIGHT
        parts.append(_stroke(x, bottom - up.at(high.low), x, bottom - up.at(high.high), colour))
    return parts


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def tick_text(value: float) -> str:
    return f"{value:,.10g}"


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    fill: str = "#222",
    size: int = 13,
    weight: str = "normal",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" font-size="{size}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )
