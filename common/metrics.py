"""What a gateway counts: under our names, and again under those that `vllm:` dashboards read.

The aliases are made from the same numbers when somebody asks: nothing is counted twice. Gateways
that share a port share a folder too, named by `SHARED`, and each of them tells the sums of all.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from common.config import environment

SHARED: Final = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client reads it when it is imported
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MODEL: Final = "model_name"
SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKENS: Final = tuple(float(1 << power) for power in range(18))

ALIASES: Final = (  # ours, vLLM's
    ("chairlift_requests_running", "vllm:num_requests_running"),
    ("chairlift_requests_waiting", "vllm:num_requests_waiting"),
    ("chairlift_prompt_tokens", "vllm:prompt_tokens"),
    ("chairlift_output_tokens", "vllm:generation_tokens"),
    ("chairlift_choices", "vllm:request_success"),
    ("chairlift_ttft_seconds", "vllm:time_to_first_token_seconds"),
    ("chairlift_itl_seconds", "vllm:inter_token_latency_seconds"),
    ("chairlift_itl_seconds", "vllm:time_per_output_token_seconds"),  # its older name
    ("chairlift_tpot_seconds", "vllm:request_time_per_output_token_seconds"),
    ("chairlift_e2e_seconds", "vllm:e2e_request_latency_seconds"),
    ("chairlift_request_prompt_tokens", "vllm:request_prompt_tokens"),
    ("chairlift_request_output_tokens", "vllm:request_generation_tokens"),
)


class GatewayMetrics:
    """Of one process, in a registry of its own, or of all that share a folder, dead ones included.

    Latencies are as the gateway sees them. Tokens and latencies of a request are counted when its
    answer is over, however it ended.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self._shared = environment().get(SHARED)
        if self._shared:
            Path(self._shared).mkdir(parents=True, exist_ok=True)
        self.running = self._gauge("requests_running", "requests that own blocks, in the pool")
        self.waiting = self._gauge("requests_waiting", "requests in line, in the pool")
        self.wait = self._gauge("predicted_wait_seconds", "for a request that comes now")
        self.cost_error = self._gauge("step_prediction_error", "of a step's time, relative")
        # The scheduler counts these; they begin anew when another one takes the lease.
        self.preempted = self._gauge("preemptions", "rows that had to step back, in the pool")
        self.cached = self._gauge("cached_tokens", "prompt tokens found in the cache, in the pool")
        self.open_answers = self._gauge("open_answers", "submissions being answered", "livesum")
        self.prompt_tokens = self._counter("prompt_tokens", "prompt tokens of submissions")
        self.output_tokens = self._counter("output_tokens", "tokens of answers")
        self.repairs = self._counter("repairs", "requests read back from log and journal")
        self.orphans = self._counter("orphans", "submissions found running that nobody waits for")
        self.ttft = self._histogram("ttft_seconds", "from the request to its first token")
        self.itl = self._histogram("itl_seconds", "between two arrivals of tokens of a choice")
        self.tpot = self._histogram("tpot_seconds", "mean of a choice's tokens after the first")
        self.e2e = self._histogram("e2e_seconds", "from the request to the end of its answer")
        self.request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "prompt tokens of a submission", TOKENS
        )
        self.request_output_tokens = self._histogram(
            "request_output_tokens", "output tokens of a choice", TOKENS
        )
        self._choices = Counter(
            "chairlift_choices",
            "choices that are over, by how they ended",
            (MODEL, "finished_reason"),
            registry=self.registry,
        )
        self._responses = Counter(
            "chairlift_responses",
            "HTTP responses begun, by status",
            (MODEL, "status"),
            registry=self.registry,
        )

    def count_choice(self, reason: str) -> None:
        self._choices.labels(self._model, reason).inc()

    def count_response(self, status: int) -> None:
        self._responses.labels(self._model, str(status)).inc()

    def exposition(self) -> bytes:
        """Prometheus' text format."""
        registry = self.registry
        if self._shared:
            registry = CollectorRegistry()
            registry.register(_Sums(Path(self._shared)))
        aliases = CollectorRegistry()
        aliases.register(_Aliases(registry))
        return generate_latest(registry) + generate_latest(aliases)

    def _gauge(
        self, name: str, text: str, of_all: Literal["mostrecent", "livesum"] = "mostrecent"
    ) -> Gauge:
        """`of_all`: what several processes tell together."""
        name = f"chairlift_{name}"
        metric = Gauge(name, text, (MODEL,), registry=self.registry, multiprocess_mode=of_all)
        return metric.labels(self._model)

    def _counter(self, name: str, text: str) -> Counter:
        metric = Counter(f"chairlift_{name}", text, (MODEL,), registry=self.registry)
        return metric.labels(self._model)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
        metric = Histogram(
            f"chairlift_{name}", text, (MODEL,), buckets=buckets, registry=self.registry
        )
        return metric.labels(self._model)


class _Sums(Collector):
    """What all processes have counted; of gauges, only what those tell that live."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def collect(self) -> Iterable[Metric]:
        files = []
        for file in self.folder.glob("*.db"):
            with contextlib.suppress(FileNotFoundError):  # another process was quicker
                if file.name.startswith("gauge_live") and not _lives(file):
                    file.unlink()
                elif file.stat().st_size:  # else a process that is just starting has made it
                    files.append(str(file))
        merged: Iterable[Metric] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return merged


def _lives(file: Path) -> bool:
    """The process whose file it is: prometheus_client ends the name with its id."""
    return Path("/proc", file.stem.rpartition("_")[2]).exists()


class _Aliases(Collector):
    """The metrics of another registry under their other names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def collect(self) -> Iterable[Metric]:
        ours = {metric.name: metric for metric in self.registry.collect()}
        for name, alias in ALIASES:
            metric = ours.get(name)
            if metric is None:  # several processes tell only what has been counted
                continue
            renamed = Metric(alias, metric.documentation, metric.type)
            renamed.samples = [
                sample._replace(name=alias + sample.name.removeprefix(name))
                for sample in metric.samples
                if not sample.name.endswith("_created")
            ]
            yield renamed
