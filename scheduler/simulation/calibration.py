"""Fits the linear cost model to a recorded timeline: least squares, no coefficient below 0.

Errors are relative, so that short steps are met as well as long ones.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from common.messages import Chunk, RequestId
from scheduler.simulation.cost import Linear, Load, load_of
from scheduler.simulation.errors import InputError

ROUNDS = 5
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
    """Least squares of (taken - predicted) / expected, where `expected` is the fit before.

    Divided by what was taken, the slowest steps would count least, and all be predicted too short.
    """
    if len(steps) < 2:
        raise InputError("too few steps with seconds to fit a cost model to")
    rows = [_features(load) for load, _ in steps]
    scales = [max(row[i] for row in rows) or 1.0 for i in range(5)]
    scaled = [[x / scale for x, scale in zip(row, scales, strict=True)] for row in rows]
    taken = [seconds for _, seconds in steps]
    expected, weights = taken, [0.0] * 5
    for _ in range(ROUNDS):
        samples = [
            ([x / by for x in row], seconds / by)
            for row, seconds, by in zip(scaled, taken, expected, strict=True)
        ]
        weights = _fit(samples)
        expected = [max(_dot(row, weights), min(taken)) for row in scaled]
    return Linear(*(weight / scale for weight, scale in zip(weights, scales, strict=True)))


def _fit(samples: Sequence[tuple[Vector, float]]) -> Vector:
    """The best of all models that use some of the features, where none counts below 0."""
    features = range(len(samples[0][0]))
    squares = [[sum(x[i] * x[j] for x, _ in samples) for j in features] for i in features]
    products = [sum(x[i] * y for x, y in samples) for i in features]
    best, least = [0.0] * len(features), 0.0  # error, less that of all zeros
    for size in features:
        for chosen in combinations(features, size + 1):
            part = [[squares[i][j] for j in chosen] for i in chosen]
            found = _solve(part, [products[i] for i in chosen])
            if found is None or min(found) < 0:
                continue
            error = -sum(w * products[i] for w, i in zip(found, chosen, strict=True))
            if error < least - 1e-12 * abs(least):
                least = error
                best = [0.0] * len(features)
                for i, weight in zip(chosen, found, strict=True):
                    best[i] = weight
    return best


def mean_error(model: Linear, steps: Sequence[Step]) -> float:
    """Mean of |predicted - taken| / taken."""
    return sum(abs(model.seconds(load) - taken) / taken for load, taken in steps) / len(steps)


def _features(load: Load) -> Vector:
    """In the order of `Linear`'s fields."""
    return [1.0, load.tokens, load.decode_context, load.rows, load.prefill_context]


def _dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _solve(matrix: Sequence[Vector], right: Vector) -> Vector | None:
    """By elimination with pivots; None where the matrix is singular, or nearly so."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(rows[row][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if abs(rows[i][i]) <= 1e-12 * max(map(max, matrix)):
            return None
        for other in range(size):
            if other != i:
                factor = rows[other][i] / rows[i][i]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[i], strict=True)]
    return [rows[i][size] / rows[i][i] for i in range(size)]
