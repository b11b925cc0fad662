"""Which workers live, what each computes, and who gets a request; pure.

A worker is judged by the counters that it raises and the watcher's own clock: `now` is the
scheduler's monotonic time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from common.messages import RequestId, WorkerHello, WorkerId
from scheduler.core.request import Request
from scheduler.core.scheduler import Scheduler


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
    trouble: str = ""  # why it must be given up

    @property
    def id(self) -> WorkerId:
        return self.hello.worker_id

    def load(self) -> tuple[bool, float]:
        """Smaller is better; one that isolates a suspect is the last choice."""
        return self.suspect is not None, self.num_assigned / self.hello.max_rows


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
        """Give the request to the least loaded worker that can hold it; None: it waits for one."""
        worker = self.choose(request)
        if worker is None:
            self.unassigned[request.id] = request
            return None
        return self.give(request, worker)

    def choose(self, request: Request) -> Worker | None:
        """The least loaded worker that can hold the request."""
        fitting = [worker for worker in self.at_work() if not worker.core.never_fits(request)]
        return min(fitting, key=Worker.load, default=None)

    def at_work(self) -> list[Worker]:
        """The workers that may be given requests."""
        return [worker for worker in self.workers.values() if worker.is_open]

    def give(self, request: Request, worker: Worker) -> WorkerId:
        worker.core.add(request)
        worker.num_assigned += 1
        return worker.id

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
            self.workers[hello.worker_id] = Worker(hello, self.build_core(hello), now, now)
            return
        if hello.beat != worker.hello.beat:
            worker.beat_since = now
        if hello.step != worker.hello.step:
            worker.step_since = now
        worker.hello = hello


def in_order(requests: Iterable[Request]) -> list[Request]:
    return sorted(requests, key=lambda request: request.arrival)
