"""What is measured, and how: one load on one server, and a plan of several of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

DEFAULT_REQUESTS = 64
DEFAULT_CONCURRENCY = 16


@dataclass(frozen=True)
class Options:
    """One load on one server. Lengths are numbers, or text as `common/lengths.py` knows it."""

    url: str = "http://127.0.0.1:8000"
    concurrency: int | None = None  # None: 16, or without limit where arrivals have their times
    requests: int | None = None  # conversations, where they have turns; None: see `count`
    duration: float | None = None  # seconds in which requests may start; None: any
    rate: float | None = None  # arrivals a second; None: as places become free
    gamma_shape: float = 1.0  # of the gaps between arrivals; 1: Poisson
    trace: str = ""  # a file that says what comes when; empty: what follows does
    rate_scale: float = 1.0  # a trace runs so many times as fast
    prompt_tokens: int | str = 128
    output_tokens: int | str = 128
    prefix_tokens: int = 0  # before them, shared with others
    prefixes: int = 1  # different ones
    turns: int = 1  # of a conversation
    model: str = ""  # empty: the first that the server names
    endpoint: str = "completions"
    text: bool = False  # prompts are words, not token ids; always so for chat and for turns
    vocabulary: tuple[int, int] = (1000, 20_000)  # [start, stop) of the token ids of prompts
    api_key: str = ""
    seed: int = 0
    temperature: float = 0.0
    ignore_eos: bool = True
    warmup: int = 0  # requests before the ones that count
    timeout_seconds: float = 600.0  # for one request
    ttft_ms: float | None = None  # targets of a good request; None: none
    tpot_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def has_times(self) -> bool:
        """Whether requests arrive when it is time, not as places become free."""
        return bool(self.rate or self.trace)

    @property
    def limit(self) -> int | None:
        """Requests at one time; None: any number."""
        return self.concurrency or (None if self.has_times else DEFAULT_CONCURRENCY)

    @property
    def count(self) -> int | None:
        """Requests; None: all that the trace has, or as many as come in the time."""
        if self.requests or self.trace or self.duration:
            return self.requests
        return DEFAULT_REQUESTS

    @property
    def is_endless(self) -> bool:
        """Whether only the duration says how many requests there will be."""
        return self.count is None and not self.has_times

    @property
    def is_text(self) -> bool:
        """Answers come as text: a conversation cannot go on in token ids."""
        return self.text or self.endpoint == "chat" or self.turns > 1


@dataclass(frozen=True)
class Sweep:
    name: str  # of the field of `Options`
    values: tuple[float, ...]


@dataclass(frozen=True)
class Case:
    """One run of a plan."""

    server: str  # its name
    value: float | None  # of what is swept
    repeat: int
    options: Options


@dataclass(frozen=True)
class Plan:
    options: Options
    servers: tuple[tuple[str, str], ...]  # name and url; the first is what others are compared with
    sweep: Sweep | None = None
    repeats: int = 1
    as_json: bool = False
    plot: str = ""  # a file; empty: none

    @property
    def values(self) -> tuple[float | None, ...]:
        return self.sweep.values if self.sweep else (None,)

    def cases(self) -> Iterator[Case]:
        """In the order in which they run: servers take turns, and who begins changes, too.

        Each pass over the servers has prompts of its own, so that no cache knows them.
        """
        passes = [(value, repeat) for value in self.values for repeat in range(self.repeats)]
        for number, (value, repeat) in enumerate(passes):
            begin = repeat % len(self.servers)
            for name, url in self.servers[begin:] + self.servers[:begin]:
                options = replace(self.options, url=url, seed=self.options.seed + number)
                swept: dict[str, Any] = {self.sweep.name: value} if self.sweep else {}
                yield Case(name, value, repeat, replace(options, **swept))
