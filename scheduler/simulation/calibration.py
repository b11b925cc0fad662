"""Fits the linear cost model to a recorded timeline: least squares, no coefficient below 0.

Errors count relative to the time that a step took: short steps are met as well as long ones.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from common.messages import Chunk, RequestId
from scheduler.simulation.cost import Linear, Load, load_of
from scheduler.simulation.errors import InputError

Vector = list[float]
Step = tuple[Load, float]  # and the seconds that it took


def read_steps(path: str) -> list[Step]:
    """The steps of a timeline of which chunks and seconds are both told. Raises InputError."""
    recording = _Recording()
    try:
        for line in Path(path).read_text().splitlines():
            recording.add(json.loads(line))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a timeline that can be used: {error!r}") from None
    loads, seconds = recording.loads, recording.seconds
    return [(loads[step], seconds[step]) for step in loads if seconds.get(step)]


class _Recording:
    """Where each chunk starts follows from the admission of its request and the chunks since."""

    def __init__(self) -> None:
        self.loads: dict[tuple[str, int], Load] = {}  # by worker and step
        self.seconds: dict[tuple[str, int], float] = {}
        self._positions: dict[str, int] = {}

    def add(self, entry: Mapping[str, Any]) -> None:
        worker = entry["worker"]
        for step, seconds in entry["seconds"]:  # of steps that ended since the last entry
            self.seconds[worker, step] = seconds
        for name, num_computed in entry["admitted"]:
            self._positions[name] = num_computed
        told = entry["chunks"]
        chunks = [self._chunk(name, count) for name, count in told if name in self._positions]
        if chunks and len(chunks) == len(told):  # else some began before the recording
            self.loads[worker, entry["step"]] = load_of(chunks)

    def _chunk(self, name: str, count: int) -> Chunk:
        start = self._positions[name]
        self._positions[name] += count
        return Chunk(RequestId(name), start, count, (), True)


def fit(steps: Sequence[Step]) -> Linear:
    """The best of all models that use some of the features, where none counts below 0."""
    if len(steps) < 2:
        raise InputError("too few steps with seconds to fit a cost model to")
    rows = [_features(load) for load, _ in steps]
    scales = [max(abs(row[i]) for row in rows) or 1.0 for i in range(5)]
    relative = [
        ([x / scale / seconds for x, scale in zip(row, scales, strict=True)], 1.0)
        for row, (_, seconds) in zip(rows, steps, strict=True)
    ]
    best, least = [0.0] * 5, float("inf")
    for size in range(1, 6):
        for chosen in combinations(range(5), size):
            weights = _least_squares([([x[i] for i in chosen], y) for x, y in relative])
            if weights is None or min(weights) < 0:
                continue
            full = [0.0] * 5
            for i, weight in zip(chosen, weights, strict=True):
                full[i] = weight
            if (error := _error(relative, full)) < least * (1 - 1e-9):
                best, least = full, error
    return Linear(*(weight / scale for weight, scale in zip(best, scales, strict=True)))


def mean_error(model: Linear, steps: Sequence[Step]) -> float:
    """Mean of |predicted - taken| / taken."""
    return sum(abs(model.seconds(load) - taken) / taken for load, taken in steps) / len(steps)


def _features(load: Load) -> Vector:
    """In the order of `Linear`'s fields."""
    return [1.0, load.tokens, load.decode_context, load.rows, load.prefill_context]


def _error(samples: Sequence[tuple[Vector, float]], weights: Vector) -> float:
    return sum((_dot(x, weights) - y) ** 2 for x, y in samples)


def _dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _least_squares(samples: Sequence[tuple[Vector, float]]) -> Vector | None:
    """From the normal equations, by elimination with pivots; None where they are singular."""
    size = len(samples[0][0])
    matrix = [
        [sum(x[i] * x[j] for x, _ in samples) for j in range(size)]
        + [sum(x[i] * y for x, y in samples)]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(matrix[row][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < 1e-9 * max(map(abs, matrix[i]), default=0.0) or not matrix[i][i]:
            return None
        for row in range(size):
            if row != i:
                factor = matrix[row][i] / matrix[i][i]
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[i], strict=True)]
    return [matrix[i][size] / matrix[i][i] for i in range(size)]
