"""Which processes `./chairlift up` starts, each with its command line and environment."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.child import Spec, Stage
from cli.options import Options
from common.config import environment, variable

MODULES = {"gateway": "gateway", "scheduler": "scheduler", "worker": "gpu_worker"}
STAGES = {"gateway": Stage.GATEWAY, "scheduler": Stage.SCHEDULER, "worker": Stage.WORKER}
DRAIN_MARGIN_SECONDS = 5.0  # beyond a service's own limit, before it is killed
SERVER_SECONDS = 20.0
QUIET = {  # for every child: lines as they come, no needless threads and arenas
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_ARENA_MAX": "2",
}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's: each gateway tells all sums


def metrics_dir(data_dir: Path) -> Path:
    """Where several gateways keep what they count, for as long as `up` runs."""
    return data_dir / "metrics"


@dataclass(frozen=True)
class Site:
    """What all services of one supervisor share."""

    options: Options
    data_dir: Path
    redis_url: str
    port: int

    def server(self, command: tuple[str, ...]) -> Spec:
        return Spec(
            "redis", Stage.SERVER, command, self._log("redis"), grace_seconds=SERVER_SECONDS
        )

    def services(self, descriptors: Sequence[int]) -> Iterator[Spec]:
        """One for each process; a gateway for each listening socket."""
        for number, descriptor in enumerate(descriptors):
            yield self._service("gateway", number, {"listen_fd": descriptor}, (descriptor,))
        for number in range(self.options.up.schedulers):
            yield self._service("scheduler", number)
        for number in range(self.options.up.workers):
            yield self._service("worker", number, {"threads": self._threads()})

    def _service(
        self,
        service: str,
        number: int,
        changes: dict[str, object] | None = None,
        descriptors: tuple[int, ...] = (),
    ) -> Spec:
        name = f"{service}-{number}"
        common = {"data_dir": self.data_dir, "port": self.port}
        flags = self.options.flags(service, common | (changes or {}))
        environ = QUIET | {variable("redis_url"): self.redis_url}  # no flag: it holds a password
        if service != "worker":
            environ |= ONE_THREAD
        if service == "gateway" and self.options.up.gateways > 1:
            environ |= {SHARED_METRICS: str(metrics_dir(self.data_dir))}
        drain_seconds = getattr(getattr(self.options, service), "drain_seconds", 0.0)
        return Spec(
            name,
            STAGES[service],
            (sys.executable, "-m", MODULES[service], *flags),
            self._log(name),
            environment(environ),
            drain_seconds + DRAIN_MARGIN_SECONDS,
            descriptors,
        )

    def _threads(self) -> int:
        """Several workers share the cores, unless told otherwise."""
        if self.options.worker.threads or self.options.up.workers == 1:
            return self.options.worker.threads
        return max(1, len(os.sched_getaffinity(0)) // self.options.up.workers)

    def _log(self, name: str) -> Path:
        return self.data_dir / "logs" / f"{name}.log"
