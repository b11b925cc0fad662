"""How equally tenants are served while they all want more.

After "Fairness in Serving Large Language Models" (OSDI 2024). The service W of a tenant is the
tokens of prompts that were admitted and of answers so far, weighted, divided by the tenant's
weight. A tenant is backlogged while a request of it waits. For two tenants that have been
backlogged together since a moment s, the gap at t is |(W1(t) - W1(s)) - (W2(t) - W2(s))|.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import combinations

from common.messages import RequestId
from scheduler.simulation.track import Track

SAMPLE_SECONDS = 1.0
_Pair = tuple[str, str]


class Fairness:
    def __init__(
        self, input_weight: float, output_weight: float, weights: Mapping[str, float]
    ) -> None:
        self.input_weight = input_weight
        self.output_weight = output_weight
        self.weights = weights  # of tenants; others have 1
        self.max_gap = 0.0
        self.gap_seconds = 0.0  # the largest gap of a moment x how long it was
        self.seconds = 0.0  # for which two tenants were backlogged
        self._past: dict[str, float] = defaultdict(
            float
        )  # service of requests that are over, not divided
        self._served: dict[RequestId, Track] = {}  # admitted once, and not over
        self._waiting: Counter[str] = Counter()
        self._spells: Counter[str] = Counter()  # how often it became backlogged
        self._bases: dict[_Pair, tuple[int, int, float]] = {}  # spells, and W1 - W2 at the start
        self._sampled_at = 0.0

    @property
    def mean_gap(self) -> float:
        return self.gap_seconds / self.seconds if self.seconds else 0.0

    def waits(self, track: Track) -> None:
        self._spells[track.tenant] += not self._waiting[track.tenant]
        self._waiting[track.tenant] += 1

    def starts(self, track: Track) -> None:
        self._waiting[track.tenant] -= 1
        self._served[track.id] = track

    def ends(self, track: Track) -> None:
        del self._served[track.id]
        self._past[track.tenant] += self._service(track)

    def note(self, now: float) -> None:
        """Look, if the last look is long enough ago."""
        elapsed = now - self._sampled_at
        if elapsed < SAMPLE_SECONDS:
            return
        self._sampled_at = now
        backlogged = sorted(tenant for tenant, count in self._waiting.items() if count)
        if len(backlogged) < 2:
            return
        served = self.service()
        gap = max(self._gap(pair, served) for pair in combinations(backlogged, 2))
        self.max_gap = max(self.max_gap, gap)
        self.gap_seconds += gap * elapsed
        self.seconds += elapsed

    def service(self) -> dict[str, float]:
        """W of each tenant now."""
        total = self._past.copy()
        for track in self._served.values():
            total[track.tenant] += self._service(track)
        return {tenant: value / self.weights.get(tenant, 1.0) for tenant, value in total.items()}

    def _service(self, track: Track) -> float:
        return self.input_weight * track.num_prompt + self.output_weight * track.num_output

    def _gap(self, pair: _Pair, served: Mapping[str, float]) -> float:
        one, other = pair
        difference = served.get(one, 0.0) - served.get(other, 0.0)
        spells = (self._spells[one], self._spells[other])
        base = self._bases.get(pair)
        if base is None or base[:2] != spells:
            base = self._bases[pair] = (*spells, difference)
        return abs(difference - base[2])
