"""Times of requests and tokens, as arrays, and their percentiles."""

import math
from array import array
from collections.abc import Iterable, Sequence

from scheduler.simulation.track import Track

PERCENTILES = (50, 90, 99)


class Latencies:
    """All in seconds.

    TTFT: from arrival to first token. TPOT: (last - first token) / (tokens - 1). ITL: between two
    tokens of an answer. E2E: from arrival to last token.
    """

    def __init__(self) -> None:
        self.ttft = array("d")
        self.tpot = array("d")
        self.e2e = array("d")
        self._gaps = array("d")  # ITL: each with how often it was seen
        self._counts = array("q")

    def first(self, track: Track, now: float) -> None:
        track.first_at = now
        self.ttft.append(now - track.arrival)

    def gap(self, seconds: float, count: int = 1) -> None:
        self._gaps.append(seconds)
        self._counts.append(count)

    def last(self, track: Track, now: float) -> None:
        self.e2e.append(now - track.arrival)
        if (value := tpot(track, now)) is not None:
            self.tpot.append(value)

    def summaries(self) -> dict[str, dict[str, float]]:
        return {
            "ttft_seconds": summary(self.ttft),
            "tpot_seconds": summary(self.tpot),
            "itl_seconds": weighted_summary(self._gaps, self._counts),
            "e2e_seconds": summary(self.e2e),
        }


def tpot(track: Track, last_at: float) -> float | None:
    """None for an answer of one token."""
    if track.num_output < 2:
        return None
    return (last_at - track.first_at) / (track.num_output - 1)


def summary(values: Sequence[float]) -> dict[str, float]:
    return weighted_summary(values, [1] * len(values))


def weighted_summary(values: Sequence[float], counts: Sequence[int]) -> dict[str, float]:
    """Mean, percentiles by nearest rank, and maximum; empty if there are no values."""
    total = sum(counts)
    if not total:
        return {}
    pairs = sorted((v, n) for v, n in zip(values, counts, strict=True) if n)
    ranks = [max(math.ceil(percent / 100 * total), 1) for percent in PERCENTILES]
    mean = sum(v * n for v, n in pairs) / total
    named = zip(PERCENTILES, _at_ranks(pairs, ranks), strict=True)
    return {"mean": mean, **{f"p{p}": value for p, value in named}, "max": pairs[-1][0]}


def _at_ranks(pairs: Iterable[tuple[float, int]], ranks: Sequence[int]) -> list[float]:
    """The values at the ranks, counted from 1 and rising; `pairs` are sorted."""
    found: list[float] = []
    seen = 0
    for value, count in pairs:
        seen += count
        while len(found) < len(ranks) and ranks[len(found)] <= seen:
            found.append(value)
    return found
