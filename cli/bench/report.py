"""What was measured: one sample a request, and the figures made of them."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

PERCENTILES = (50, 90, 95, 99)
MEANINGS = """\
TTFT  from the arrival of a request, connecting included, to its first token
TPOT  (E2E - TTFT) / (tokens - 1)
ITL   between two frames of an answer; a frame may carry several tokens
E2E   from the arrival of a request to the end of its stream
"""


@dataclass(frozen=True)
class Sample:
    """One request. Times in seconds; those of a request that failed do not count."""

    start: float  # since the first request
    end: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    frames: tuple[float, ...] = ()  # when each frame that carried tokens came, since the start
    error: str = ""  # its kind; empty: none

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


@dataclass(frozen=True)
class Report:
    samples: tuple[Sample, ...]
    options: dict[str, Any] = field(default_factory=dict)

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

    def to_json(self) -> dict[str, Any]:
        """Every raw figure, and the summaries."""
        return {
            "options": self.options,
            "seconds": self.seconds,
            "requests": len(self.samples),
            "failed": self.num_failed,
            "errors": self.errors,
            "output_tokens": self.output_tokens,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens_per_second": self.rate(self.output_tokens),
            "prompt_tokens_per_second": self.rate(self.prompt_tokens),
            "requests_per_second": self.rate(len(self.done)),
            "longest_gap_seconds": self.longest_gap,
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
        lines += ["", f"longest gap {1000 * self.longest_gap:.1f} ms", "", MEANINGS.rstrip()]
        lines += [f"failed: {count} x {kind}" for kind, count in self.errors.items()]
        return "\n".join(lines)


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
