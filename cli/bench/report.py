"""What was measured: one sample a request, and the figures made of them."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cli.bench.options import Options

PERCENTILES = (50, 90, 95, 99)
NAMED_FAILURES = 8  # requests of one kind of failure that are named
BUSY = 0.7  # of a core: beyond it the client may be what is measured
LATE = 0.01  # seconds; likewise


@dataclass(frozen=True)
class Sample:
    """One request. Times in seconds; those of a request that failed do not count."""

    start: float  # since the first request
    end: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    frames: tuple[float, ...] = ()  # when each frame that carried tokens came, since the start
    error: str = ""  # its kind; empty: none
    number: int = 0  # of the conversation
    turn: int = 0
    asked_tokens: int = 0  # of the answer
    has_usage: bool = True  # else tokens are frames
    late: float = 0.0  # behind the time when it was due, by the client's own fault

    @property
    def e2e(self) -> float:
        return self.end - self.start

    @property
    def ttft(self) -> float:
        return self.frames[0] if self.frames else self.e2e

    @property
    def tpot(self) -> float | None:
        """None for an answer of one token."""
        if self.output_tokens < 2:
            return None
        return (self.e2e - self.ttft) / (self.output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.frames, self.frames[1:], strict=False)]

    @property
    def name(self) -> str:
        return f"{self.number}.{self.turn}" if self.turn else str(self.number)


@dataclass(frozen=True)
class Targets:
    """What a good request meets, in seconds; None: no target."""

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    e2e: float | None = None

    @classmethod
    def of(cls, options: Options) -> "Targets":
        told = (options.ttft_ms, options.tpot_ms, options.itl_ms, options.e2e_ms)
        return cls(*(None if value is None else value / 1e3 for value in told))

    @property
    def are_given(self) -> bool:
        return self != Targets()

    def met_by(self, sample: Sample) -> bool:
        longest = max(sample.gaps, default=0.0)
        pairs = (
            (sample.ttft, self.ttft),
            (sample.tpot or 0.0, self.tpot),
            (longest, self.itl),
            (sample.e2e, self.e2e),
        )
        return not sample.error and all(goal is None or value <= goal for value, goal in pairs)


@dataclass(frozen=True)
class Report:
    samples: tuple[Sample, ...]
    options: dict[str, Any] = field(default_factory=dict)
    targets: Targets = Targets()
    busy: float = 0.0  # cores that the client itself took

    @property
    def done(self) -> list[Sample]:
        return [sample for sample in self.samples if not sample.error]

    @property
    def num_failed(self) -> int:
        return len(self.samples) - len(self.done)

    @property
    def errors(self) -> dict[str, int]:
        return dict(Counter(sample.error for sample in self.samples if sample.error).most_common())

    @property
    def seconds(self) -> float:
        """From the first arrival to the last end."""
        if not self.samples:
            return 0.0
        return max(s.end for s in self.samples) - min(s.start for s in self.samples)

    def rate(self, count: int) -> float:
        return count / self.seconds if self.seconds else 0.0

    @property
    def output_tokens(self) -> int:
        return sum(sample.output_tokens for sample in self.done)

    @property
    def prompt_tokens(self) -> int:
        return sum(sample.prompt_tokens for sample in self.done)

    @property
    def num_good(self) -> int:
        return sum(self.targets.met_by(sample) for sample in self.samples)

    @property
    def good_share(self) -> float:
        return self.num_good / len(self.samples) if self.samples else 0.0

    def latencies(self) -> dict[str, list[float]]:
        """Seconds, by name."""
        done = self.done
        return {
            "TTFT": [sample.ttft for sample in done],
            "TPOT": [sample.tpot for sample in done if sample.tpot is not None],
            "ITL": [gap for sample in done for gap in sample.gaps],
            "E2E": [sample.e2e for sample in done],
        }

    @property
    def longest_gap(self) -> float:
        return max(self.latencies()["ITL"], default=0.0)

    def failures(self) -> list[str]:
        """A line for each kind, with the requests that failed so."""
        lines = []
        for kind, count in self.errors.items():
            names = [sample.name for sample in self.samples if sample.error == kind]
            more = ", …" if count > NAMED_FAILURES else ""
            shown = ", ".join(names[:NAMED_FAILURES]) + more
            lines.append(f"failed: {count} x {kind} (request {shown})")
        return lines

    def notes(self) -> list[str]:
        """What must be known before the figures are believed."""
        done, lines = self.done, []
        if self.num_failed:
            lines.append(f"all figures are of the {len(done)} requests that did not fail")
        short = sum(1 for s in done if s.asked_tokens and s.output_tokens != s.asked_tokens)
        if short:
            lines.append(f"{short} answers have another length than was asked for")
        if not all(sample.has_usage for sample in done):
            lines.append("no usage in some answers: their tokens are frames, prompts count as 0")
        if self.busy > BUSY:
            lines.append(
                f"this client took {self.busy:.2f} of a core: it may limit what it measures"
            )
        latest = max((sample.late for sample in self.samples), default=0.0)
        if latest > LATE:
            lines.append(
                f"arrivals were up to {1e3 * latest:.0f} ms late: the client could not keep up"
            )
        return [f"note: {line}" for line in lines]

    def to_json(self) -> dict[str, Any]:
        """Every raw figure, and the summaries."""
        return {
            "options": self.options,
            "seconds": self.seconds,
            "requests": len(self.samples),
            "failed": self.num_failed,
            "errors": self.errors,
            "notes": self.notes(),
            "output_tokens": self.output_tokens,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens_per_second": self.rate(self.output_tokens),
            "prompt_tokens_per_second": self.rate(self.prompt_tokens),
            "requests_per_second": self.rate(len(self.done)),
            "targets": asdict(self.targets),
            "good": self.num_good,
            "good_share": self.good_share,
            "good_requests_per_second": self.rate(self.num_good),
            "longest_gap_seconds": self.longest_gap,
            "client_cores": self.busy,
            **{
                f"{name.lower()}_seconds": summary(values)
                for name, values in self.latencies().items()
            },
            "samples": [asdict(sample) for sample in self.samples],
        }

    def __str__(self) -> str:
        done = self.done
        mean = self.output_tokens / len(done) if done else 0.0
        lines = [
            f"{len(self.samples)} requests, {self.num_failed} failed, in {self.seconds:.2f} s; "
            f"{mean:.1f} tokens an answer",
            f"output {self.rate(self.output_tokens):.1f} tokens/s, "
            f"prompts {self.rate(self.prompt_tokens):.1f} tokens/s, "
            f"{self.rate(len(done)):.2f} requests/s",
            "",
            f"{'ms':<6}" + "".join(f"{name:>10}" for name in summary([0.0])),
        ]
        for name, values in self.latencies().items():
            cells = (f"{1000 * value:>10.2f}" for value in summary(values).values())
            lines.append(f"{name:<6}" + "".join(cells))
        lines += ["", f"longest gap {1000 * self.longest_gap:.1f} ms"]
        if self.targets.are_given:
            lines.append(
                f"good {self.num_good} of {len(self.samples)} ({100 * self.good_share:.1f} %), "
                f"{self.rate(self.num_good):.2f} requests/s"
            )
        lines += self.notes() + self.failures()
        return "\n".join([*lines, "how each is counted: --definitions"])


def summary(values: Sequence[float]) -> dict[str, float]:
    """Mean, percentiles and maximum; empty if there are no values."""
    if not values:
        return {}
    ranked = sorted(values)
    named = {f"p{percent}": percentile(ranked, percent) for percent in PERCENTILES}
    return {"mean": sum(ranked) / len(ranked), **named, "max": ranked[-1]}


def percentile(ranked: Sequence[float], percent: float) -> float:
    """Nearest rank: the smallest value that `percent` of all do not exceed."""
    return ranked[max(math.ceil(percent / 100 * len(ranked)) - 1, 0)]
