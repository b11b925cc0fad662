"""A virtual clock around the real scheduler: arrivals go in, steps take what a cost model says.

There are two kinds of events: a request arrives, a worker's step ends. After all of one moment, the
scheduler plans as far ahead as it will, workers without a line take from those that have one, and
idle ones begin their next steps. The control plane takes no time.
"""

import heapq
import math
from collections.abc import Iterator

from common.messages import Ending, RequestId, Sampling, WorkerId
from scheduler.balancing import Balancing
from scheduler.core.invariants import check
from scheduler.core.request import Request
from scheduler.fleet import Fleet
from scheduler.simulation.cost import CostModel
from scheduler.simulation.drawing import Recorder
from scheduler.simulation.measures import Measures
from scheduler.simulation.track import Track
from scheduler.simulation.worker import VirtualWorker
from scheduler.simulation.workload import END_TOKEN, Arrival, own_token, prompt, strictly_later

SAMPLING = Sampling(seed=0)


class Simulation:
    def __init__(
        self,
        fleet: Fleet,
        cost: CostModel,
        measures: Measures,
        recorders: dict[WorkerId, Recorder],
        *,
        max_tokens: int = 0,
        is_checked: bool = False,
    ) -> None:
        self.fleet = fleet
        self.measures = measures
        self.max_tokens = max_tokens  # that all requests claim to need; 0: what arrivals say
        self.is_checked = is_checked  # all invariants after each event: slow
        self.tracks: dict[RequestId, Track] = {}
        self.now = 0.0
        self.workers = {
            name: VirtualWorker(worker.core, cost, measures, self.tracks, recorders[name])
            for name, worker in fleet.workers.items()
        }
        self._balancing = Balancing(fleet, fleet.take_back)
        self._steps: list[tuple[float, int, WorkerId]] = []  # a heap: end, serial, whose
        self._num_steps = 0
        self._moved: set[WorkerId] = set()  # for whom something is new
        self._serial = 0
        self._last_arrival = -math.inf

    def run(self, arrivals: Iterator[Arrival], stop_at: float = math.inf) -> None:
        """Until nothing is left to do, or to the moment `stop_at`; arrivals come by time."""
        coming = next(arrivals, None)
        while coming or self._steps:
            arrives_at = coming.at if coming else math.inf
            ends_at = self._steps[0][0] if self._steps else math.inf
            if min(arrives_at, ends_at) > stop_at:
                self.now = stop_at
                return
            self.now = min(arrives_at, ends_at)
            while coming and coming.at <= self.now:
                self._arrive(coming)
                coming = next(arrivals, None)
            while self._steps and self._steps[0][0] <= self.now:
                self._end_step(heapq.heappop(self._steps)[2])
            self._go_on()
        self._expect_nothing_left()

    def _arrive(self, arrival: Arrival) -> None:
        self._serial += 1
        request = self._request(arrival)
        track = Track(
            id=request.id,
            tenant=arrival.tenant,
            arrival=arrival.at,
            num_prompt=arrival.prompt_tokens,
            num_answer=arrival.output_tokens,
            token=own_token(self._serial),
            ends_itself=bool(request.ending.end_tokens),
        )
        self.measures.comes(track)
        if why := self.fleet.never_fits(request):
            self.measures.refused[why] += 1
            return
        self.tracks[request.id] = track
        self.measures.waits(track)
        name = self.fleet.assign(request)
        assert name, "no worker takes a request that fits"
        self._moved.add(name)

    def _request(self, arrival: Arrival) -> Request:
        """One whose client allows more than its answer will have ends by an end token."""
        self._last_arrival = strictly_later(arrival.at, self._last_arrival)
        return Request(
            id=RequestId(f"{arrival.name or self._serial}"),
            tokens=prompt(arrival, self._serial),
            num_prompt=arrival.prompt_tokens,
            sampling=SAMPLING,
            ending=self._ending(arrival),
            tenant=arrival.tenant,
            priority=arrival.priority,
            arrival=self._last_arrival,
        )

    def _ending(self, arrival: Arrival) -> Ending:
        core = next(iter(self.fleet.workers.values())).core
        room = core.limits.max_request_tokens - arrival.prompt_tokens
        most = min(self.max_tokens or arrival.max_tokens, room)
        if most <= arrival.output_tokens:
            return Ending(arrival.output_tokens)
        return Ending(most, end_tokens=(END_TOKEN,))

    def _end_step(self, name: WorkerId) -> None:
        worker = self.workers[name]
        worker.core.apply(worker.finish(self.now))
        for request in worker.core.take_ended():
            track = self.tracks.pop(request.id)
            assert request.num_output == track.num_output == track.num_answer, "tokens are lost"
            self.fleet.workers[name].num_assigned -= 1
        self._moved.add(name)

    def _go_on(self) -> None:
        """Plan for those for whom something is new, and begin their next steps."""
        for name in sorted(self._moved):
            self._plan(name)
        if len(self.workers) > 1:
            for name in dict.fromkeys(worker.id for _, worker in self._balancing.balance(self.now)):
                self._moved.add(name)
                self._plan(name)
        for name in sorted(self._moved):
            worker = self.workers[name]
            seconds = worker.start()
            if seconds is not None:
                self._num_steps += 1
                heapq.heappush(self._steps, (self.now + seconds, self._num_steps, name))
            if self.is_checked:
                check(worker.core)
        self._moved.clear()

    def _plan(self, name: WorkerId) -> None:
        worker = self.workers[name]
        if worker.core.can_plan():
            self.fleet.workers[name].seen = self._last_arrival
        worker.plan()

    def _expect_nothing_left(self) -> None:
        for worker in self.workers.values():
            if line := worker.core.line(1):
                head = line[0]
                raise AssertionError(f"{head.request_id} waits for ever: {head.reason}")
        assert not self.tracks, f"{len(self.tracks)} requests never ended"
