"""Which workers live, what each computes, and who gets a request; pure.

A worker is judged by the counters that it raises and the watcher's own clock: `now` is the
scheduler's monotonic time.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from common.messages import RequestId, WorkerHello, WorkerId
from scheduler.core.block_pool import blocks_for
from scheduler.core.request import Request
from scheduler.core.scheduler import Scheduler

ROW_TOKENS = 32  # a row that decodes weighs as much as so many tokens of a prompt


@dataclass(slots=True, eq=False)
class Worker:
    hello: WorkerHello
    core: Scheduler
    beat_since: float  # when its beat last moved
    step_since: float  # when the step that it computes last changed
    is_open: bool = False  # its log exists: before that, no owner can be written
    cursor: int = 0  # last step of its log that was read
    num_assigned: int = 0  # requests in its core that have not ended
    trims: list[tuple[float, int]] = field(default_factory=list)  # (when, results before this step)
    suspect: RequestId | None = None  # that runs alone here
    is_draining: bool = False  # gets nothing new, and what waits here goes elsewhere
    seen: float = -math.inf  # whoever came up to then stood in line when its last step was planned
    trouble: str = ""  # why it must be given up

    @property
    def id(self) -> WorkerId:
        return self.hello.worker_id

    @property
    def num_seats(self) -> int:
        """Free ones."""
        return self.core.limits.max_running - len(self.core.running)

    @property
    def is_idle(self) -> bool:
        """It could start more than it has."""
        core = self.core
        is_closed = core.choices.batching == "static" and len(core.running) > 0
        return not (self.suspect or core.waiting.num_ready or is_closed) and self.num_seats > 0

    @property
    def has_line(self) -> bool:
        """Others could start what waits here."""
        return not self.suspect and self.core.waiting.num_ready > 0

    @property
    def num_spare_blocks(self) -> int:
        return self.core.pool.num_free - self.core.running.num_growing

    def blocks_to_start(self, request: Request) -> int:
        """With one that it may grow by."""
        is_whole = self.core.choices.kv == "reserved"
        tokens = request.max_length if is_whole else len(request.tokens)
        return blocks_for(tokens, self.hello.block_size) + 1

    def score(self, request: Request) -> tuple[bool, float, float]:
        """Smaller is better: what is to be computed here before and of the request.

        One that isolates a suspect is the last choice. Among equals the emptiest is chosen.
        """
        core = self.core
        own = len(request.tokens) - core.cached_tokens(request)
        work = own + core.backlog_tokens + ROW_TOKENS * len(core.running)
        return self.suspect is not None, work, self.num_assigned / self.hello.max_rows


class Fleet:
    def __init__(
        self,
        build_core: Callable[[WorkerHello], Scheduler],
        beat_seconds: float,
        step_seconds: float,
    ) -> None:
        self.build_core = build_core
        self.beat_seconds = beat_seconds  # a beat that stands still so long: the worker is lost
        self.step_seconds = step_seconds  # a step that runs so long: the worker is lost
        self.workers: dict[WorkerId, Worker] = {}
        self.unassigned: dict[RequestId, Request] = {}  # in order of arrival: no worker yet
        self.drained_tenants: set[str] = set()

    def watch(
        self, hellos: Mapping[WorkerId, WorkerHello], now: float
    ) -> list[tuple[WorkerId, str]]:
        """Take in what `workers` says. Returns who is lost, and why; forgets nobody yet.

        One that is new gets nothing to do until `open` says that its log exists.
        """
        for hello in hellos.values():
            self._see(hello, now)
        lost = []
        for worker_id, worker in self.workers.items():
            if worker_id not in hellos:
                lost.append((worker_id, "its field is gone"))
            elif worker.trouble:
                lost.append((worker_id, worker.trouble))
            elif worker.hello.leaving:
                lost.append((worker_id, worker.hello.failed or "it leaves"))
            elif now - worker.beat_since > self.beat_seconds:
                lost.append((worker_id, "its beat stands still"))
            elif worker.hello.step and now - worker.step_since > self.step_seconds:
                lost.append((worker_id, "its step does not end"))
        return lost

    def unopened(self) -> list[WorkerId]:
        return [worker_id for worker_id, worker in self.workers.items() if not worker.is_open]

    def open(self, worker_id: WorkerId) -> None:
        self.workers[worker_id].is_open = True

    def assign(self, request: Request) -> WorkerId | None:
        """Give the request to the worker where it fits best; None: it waits for one."""
        worker = self.choose(request)
        if worker is None:
            self.unassigned[request.id] = request
            return None
        return self.give(request, worker)

    def choose(self, request: Request) -> Worker | None:
        """The worker with the least work before the request's first token."""
        fitting = [worker for worker in self.hiring() if not worker.core.never_fits(request)]
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        return min(fitting, key=lambda worker: worker.score(request))

    def at_work(self) -> list[Worker]:
        """The workers whose logs exist."""
        return [worker for worker in self.workers.values() if worker.is_open]

    def hiring(self) -> list[Worker]:
        """The workers that may be given requests."""
        return [worker for worker in self.at_work() if not worker.is_draining]

    def give(self, request: Request, worker: Worker) -> WorkerId:
        worker.core.add(request)
        worker.num_assigned += 1
        return worker.id

    def take_back(self, request: Request, worker: Worker) -> bool:
        """Take from the worker what waits there; False if it has part of the request."""
        taken = worker.core.take_back(request.id)
        worker.num_assigned -= taken is not None
        return taken is not None

    def drain_tenant(self, tenant: str) -> None:
        self.drained_tenants.add(tenant)
        for worker in self.workers.values():
            worker.core.drain_tenant(tenant)

    def undrain_tenant(self, tenant: str) -> None:
        self.drained_tenants.discard(tenant)
        for worker in self.workers.values():
            worker.core.undrain_tenant(tenant)

    def take_unassigned(self) -> list[Request]:
        requests, self.unassigned = list(self.unassigned.values()), {}
        return requests

    def never_fits(self, request: Request) -> str | None:
        """Why no worker can ever hold the request; None while one can, or there is none at all.

        One that is only just joining counts: after a takeover all join anew, and not at once.
        """
        reasons = [worker.core.never_fits(request) for worker in self.workers.values()]
        return reasons[0] if reasons and all(reasons) else None

    def bury(self, worker_id: WorkerId) -> list[Request]:
        """Forget a worker whose log is closed and read. Returns its unfinished requests."""
        return self.workers.pop(worker_id).core.strand()

    def logs(self) -> dict[WorkerId, int]:
        return {worker.id: worker.cursor for worker in self.at_work()}

    def _see(self, hello: WorkerHello, now: float) -> None:
        worker = self.workers.get(hello.worker_id)
        if worker is None:
            core = self.build_core(hello)
            for tenant in self.drained_tenants:
                core.drain_tenant(tenant)
            self.workers[hello.worker_id] = Worker(hello, core, now, now)
            return
        if hello.beat != worker.hello.beat:
            worker.beat_since = now
        if hello.step != worker.hello.step:
            worker.step_since = now
        worker.hello = hello


def in_order(requests: Iterable[Request]) -> list[Request]:
    return sorted(requests, key=lambda request: request.arrival)
