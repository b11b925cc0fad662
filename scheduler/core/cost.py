"""How long a step takes, learned from those that were: least squares over a few features.

seconds = a + b * tokens + c * rows that decode + d * tokens that these attend to
            + e * (tokens of prompts times tokens that they attend to)

All five are costs, so none is negative. What counts is the error relative to the step's time. The
model forgets slowly, so that it follows a machine whose speed changes; what steps of late do not
tell apart, as tokens and rows while all decode, stays as it was learned before.
"""

from bisect import insort
from collections import deque
from collections.abc import Sequence

from scheduler.core.decision import Decision

FORGET = 0.985  # weight of the past after each step that is learned from
SWEEPS = 1  # of coordinate descent after each step
SAMPLE = 4  # of this many steps that only decode, one is learned from: they are alike
TRUST = 20  # steps until the excess of steps is known well enough
ERROR_WEIGHT = 0.1  # of the newest step in the mean error
WINDOW = 200  # steps whose excess is remembered
QUANTILE = 0.98  # of the steps that shall take no longer than foreseen
# Scales that bring the features near 1; and before the first step, a slow machine.
SCALES = (1.0, 100.0, 10.0, 1e4, 1e5)
PRIOR = (0.001, 0.05, 0.001, 0.001, 0.001)
ANCHOR = 1.0  # weight of the prior: of a step, it is hundreds or thousands

Features = tuple[float, float, float, float, float]


def features(step: Decision) -> Features:
    return (
        1.0,
        step.num_tokens / SCALES[1],
        step.num_decoding / SCALES[2],
        step.decode_context / SCALES[3],
        step.prefill_attention / SCALES[4],
    )


class CostModel:
    def __init__(self) -> None:
        self.error = 0.0  # mean of |predicted - taken| / taken, of late
        self.num_steps = 0
        self._weights = list(PRIOR)
        # What the weights solve: moments * weights = goals.
        self._moments = [[ANCHOR * (i == j) for j in range(5)] for i in range(5)]
        self._goals = [ANCHOR * weight for weight in PRIOR]
        self._excess: deque[float] = deque(maxlen=WINDOW)  # taken / predicted
        self._sorted: list[float] = []

    def seconds(self, step: Decision) -> float:
        """What the step is predicted to take."""
        return self._predict(features(step))

    def seconds_per_prompt_token(self) -> float:
        return max(self._weights[1], 1e-9) / SCALES[1]

    def learn(self, step: Decision, seconds: float) -> None:
        if seconds <= 0:
            return
        self.num_steps += 1
        if self.num_steps > TRUST and self.num_steps % SAMPLE and not step.prefill_attention:
            return
        x = features(step)
        predicted = self._predict(x)
        self.error += ERROR_WEIGHT * (abs(predicted - seconds) / seconds - self.error)
        self._remember(seconds / predicted)
        self._take_in([feature / seconds for feature in x])  # so that errors are relative ones
        for _ in range(SWEEPS):
            self._descend()

    def _take_in(self, scaled: list[float]) -> None:
        v, w, x, y, z = scaled
        for row, one in zip(self._moments, scaled, strict=True):
            a, b, c, d, e = row
            row[:] = (
                FORGET * a + one * v,
                FORGET * b + one * w,
                FORGET * c + one * x,
                FORGET * d + one * y,
                FORGET * e + one * z,
            )
        self._goals = [FORGET * goal + one for goal, one in zip(self._goals, scaled, strict=True)]

    def _descend(self) -> None:
        """Each weight in turn takes its best value that is not negative, given the others.

        A direction that has no moment any more is left alone: it keeps what it has.
        """
        weights = self._weights
        for i, (row, goal) in enumerate(zip(self._moments, self._goals, strict=True)):
            if row[i] > 1e-9:
                weights[i] = max(0.0, weights[i] + (goal - _dot(row, weights)) / row[i])

    def room(self, step: Decision, start: int, target: float) -> int:
        """Tokens of a prompt, from position `start` on, that the step may take within `target`.

        Steps take now and then longer than predicted: the target is met by all but the worst.
        """
        base = self.seconds(step)
        left = target / self.margin - base
        per_token = self.seconds_per_prompt_token()
        per_pair = self._weights[4] / SCALES[4]
        # left = per_token * n + per_pair * n * (start + n / 2), solved for n
        linear = per_token + per_pair * start
        if left <= 0:
            return 0
        if per_pair * left < 1e-6 * linear * linear:
            return int(left / linear)
        return int(((linear * linear + 2 * per_pair * left) ** 0.5 - linear) / per_pair)

    @property
    def margin(self) -> float:
        """How much longer than predicted all but the slowest steps take."""
        if len(self._sorted) < TRUST:
            return 1.5
        return max(1.0, self._sorted[int(QUANTILE * (len(self._sorted) - 1))])

    def _predict(self, x: Features) -> float:
        return max(1e-6, _dot(self._weights, x))

    def _remember(self, excess: float) -> None:
        if len(self._excess) == WINDOW:
            self._sorted.remove(self._excess[0])
        self._excess.append(excess)
        insort(self._sorted, excess)


def _dot(x: Sequence[float], y: Sequence[float]) -> float:
    """Written out: it is needed six times a step, and a loop takes four times as long."""
    return x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3] + x[4] * y[4]
