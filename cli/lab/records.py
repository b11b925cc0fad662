"""What each request of a run went through, simulated or measured, and figures made of them."""

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.lab.errors import LabError
from cli.lab.simulator import Figures


@dataclass(frozen=True)
class Record:
    tenant: str
    arrival: float  # seconds, as the next two
    first: float  # when its first token came
    last: float
    prompt_tokens: int
    output_tokens: int

    @property
    def ttft(self) -> float:
        return self.first - self.arrival

    @property
    def decoding(self) -> float:
        """Seconds from its first token to its last."""
        return self.last - self.first

    @property
    def seconds_per_token(self) -> float:
        """Orca's normalised latency: from arrival to end, by the tokens of the answer."""
        return (self.last - self.arrival) / self.output_tokens

    @property
    def service(self) -> float:
        """With the weights of the paper on fairness."""
        return self.prompt_tokens + 2 * self.output_tokens


def records(case: Figures) -> list[Record]:
    """Of a simulation."""
    return [Record(*fields) for _, *fields in case["each_request"]]


def read_measured(path: Path) -> list[Record]:
    """A CSV that tells what was measured of each request."""
    try:
        with path.open(newline="") as file:
            return [_measured(row) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError) as error:
        raise LabError(f"{path}: {error!r}") from None


def _measured(row: dict[str, str]) -> Record:
    arrival = float(row["arrival_s"])
    first = arrival + float(row["measured_ttft_s"])
    last = arrival + float(row["measured_latency_s"])
    tokens = int(row["prompt_tokens"]), int(row["output_tokens"])
    return Record(row["tenant"], arrival, first, last, *tokens)


def tokens_per_second(found: Sequence[Record]) -> float:
    """Of prompts and answers, from 0 to the last end."""
    tokens = sum(one.prompt_tokens + one.output_tokens for one in found)
    return tokens / max(one.last for one in found)


def gaps(found: Iterable[Record], until: float, every: float) -> list[float]:
    """The difference in service since 0 between the two tenants, at equal distances.

    A request's service is spread evenly over the time from its first token to its last, which is
    all that is known of what was measured.
    """
    moments = [every * i for i in range(1, int(until / every) + 1)]
    served = {moment: defaultdict[str, float](float) for moment in moments}
    for one in found:
        for moment in moments:
            if moment > one.first:
                done = min(1.0, (moment - one.first) / max(one.last - one.first, 1e-9))
                served[moment][one.tenant] += one.service * done
    return [_spread(served[moment]) for moment in moments]


def _spread(by_tenant: dict[str, float]) -> float:
    values = [*by_tenant.values(), *[0.0] * (2 - len(by_tenant))]
    return max(values) - min(values)


def lightest(found: Iterable[Record], count: int) -> set[str]:
    """The tenants that asked for least."""
    asked: Counter[str] = Counter()
    for one in found:
        asked[one.tenant] += round(one.service)
    return {name for name, _ in sorted(asked.items(), key=lambda pair: pair[1])[:count]}


def mean(values: Iterable[float]) -> float:
    collected = list(values)
    return sum(collected) / len(collected) if collected else math.nan


def median(values: Iterable[float]) -> float:
    ranked = sorted(values)
    return ranked[(len(ranked) - 1) // 2] if ranked else math.nan
