"""What is counted while a simulation runs, for all workers together."""

from array import array
from collections import Counter
from dataclasses import dataclass, field

from scheduler.simulation.fairness import Fairness
from scheduler.simulation.latencies import Latencies, tpot
from scheduler.simulation.track import NEVER, Track


@dataclass(frozen=True, slots=True)
class Goals:
    """Bounds within which an answer counts as good, in seconds; 0: none."""

    ttft: float = 0.0
    tpot: float = 0.0

    def are_met(self, track: Track, now: float) -> bool:
        is_early = not self.ttft or track.first_at - track.arrival <= self.ttft
        pace = tpot(track, now)
        return is_early and (not self.tpot or pace is None or pace <= self.tpot)


@dataclass(slots=True)
class TenantMeasures:
    latencies: Latencies = field(default_factory=Latencies)  # without ITL
    num_ended: int = 0
    num_good: int = 0
    prompt_tokens: int = 0  # of requests that are over, as the next
    output_tokens: int = 0


class Measures:
    def __init__(self, goals: Goals, fairness: Fairness, *, keeps_requests: bool = False) -> None:
        self.goals = goals
        self.keeps_requests = keeps_requests
        self.requests: list[tuple[str, str, float, float, float, int, int]] = []  # see `_keep`
        self.fairness = fairness
        self.latencies = Latencies()
        self.tenants: dict[str, TenantMeasures] = {}
        self.preemptions: Counter[str] = Counter()  # by kind
        self.refused: Counter[str] = Counter()  # by reason
        self.num_came = 0
        self.num_ended = 0
        self.num_good = 0
        self.output_tokens = 0  # of all answers so far
        self.step_tokens = 0  # computed
        self.num_rows = 0  # rows that took part in steps
        self.num_steps = 0  # that computed something
        self.prompt_tokens = 0  # of requests that were admitted, as the next three
        self.cached_tokens = 0
        self.prompt_blocks = 0
        self.cached_blocks = 0
        self.started_at = 0.0  # when the first request came
        self._ends = array("d")  # of each step

    def comes(self, track: Track) -> None:
        if not self.num_came:
            self.started_at = track.arrival
        self.num_came += 1

    def waits(self, track: Track) -> None:
        self.fairness.waits(track)

    def starts(self, track: Track, num_found: int, block_size: int) -> None:
        """A row begins, with so many tokens in its blocks already."""
        self.fairness.starts(track)
        if track.was_admitted:
            return
        track.was_admitted = True
        track.num_cached = num_found
        self.prompt_tokens += track.num_prompt
        self.cached_tokens += num_found
        self.prompt_blocks += -(-track.num_prompt // block_size)
        self.cached_blocks += num_found // block_size

    def step_ends(self, now: float) -> int:
        """Its number among the steps of all workers."""
        self._ends.append(now)
        return len(self._ends) - 1

    def tokens(self, count: int, previous: int, now: float) -> None:
        """So many rows got a token now, and the one before in the step `previous`."""
        self.output_tokens += count
        if count:
            self.latencies.gap(now - self._ends[previous], count)

    def token_after_pause(self, track: Track, now: float) -> None:
        """A first token, or one of a row that the step before passed over."""
        self.output_tokens += 1
        if track.last_step == NEVER:
            self.latencies.first(track, now)
        else:
            self.latencies.gap(now - self._ends[track.last_step])

    def ends(self, track: Track, now: float) -> None:
        tenant = self.tenant(track.tenant)
        is_good = self.goals.are_met(track, now)
        self.fairness.ends(track)
        self.num_ended += 1
        self.num_good += is_good
        self.latencies.last(track, now)
        tenant.num_ended += 1
        tenant.num_good += is_good
        tenant.prompt_tokens += track.num_prompt
        tenant.output_tokens += track.num_output
        tenant.latencies.first(track, track.first_at)
        tenant.latencies.last(track, now)
        if self.keeps_requests:
            self._keep(track, now)

    def _keep(self, track: Track, now: float) -> None:
        times = (track.arrival, track.first_at, now)
        self.requests.append((track.id, track.tenant, *times, track.num_prompt, track.num_output))

    def tenant(self, name: str) -> TenantMeasures:
        if name not in self.tenants:
            self.tenants[name] = TenantMeasures()
        return self.tenants[name]
