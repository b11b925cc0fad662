"""Idle workers take from the lines of others; pure, for the leader and the simulator alike.

A request that moves has no part on the worker that it leaves.
"""

from collections.abc import Callable
from itertools import islice

from common.messages import RequestId
from scheduler.core.request import Request
from scheduler.fleet import Fleet, Worker

MOVE_SECONDS = 1.0  # who was moved stays for so long, or two workers might play ball with it
SCANNED = 64  # of a line that are looked at for an idle worker


class Balancing:
    def __init__(self, fleet: Fleet, take_back: Callable[[Request, Worker], bool]) -> None:
        """`take_back`: takes a request out of a worker's line, as far as it lets it go."""
        self.fleet = fleet
        self._take_back = take_back
        self._moved: dict[RequestId, float] = {}  # when, oldest first

    def balance(self, now: float) -> list[tuple[Request, Worker]]:
        """Who has seats and no line takes from the longest line. Returns who moved, and to whom."""
        workers = self.fleet.hiring()
        idle = [worker for worker in workers if worker.is_idle]
        if not idle or len(idle) == len(workers):
            return []
        self._forget_moves(now)
        return [move for worker in idle for move in self._help(worker, workers, now)]

    def _help(
        self, worker: Worker, workers: list[Worker], now: float
    ) -> list[tuple[Request, Worker]]:
        """What it takes from the longest line in which there is something for it."""
        lines = [other for other in workers if other is not worker and other.has_line]
        lines.sort(key=lambda other: -other.core.waiting.num_ready)
        for other in lines:
            if taken := self._steal(worker, other, now):
                return [(request, worker) for request in taken]
        return []

    def _steal(self, worker: Worker, other: Worker, now: float) -> list[Request]:
        """Up to half of the line, as far as it can be admitted at once."""
        num_ready = other.core.waiting.num_ready
        most = min(worker.num_seats, (num_ready + 1) // 2)
        room = worker.num_spare_blocks
        taken: list[Request] = []
        for request in list(islice(other.core.waiting, min(num_ready, SCANNED))):
            needed = worker.blocks_to_start(request)
            if needed > room or not self._may_move(request, worker, other):
                continue
            if self._take_back(request, other):
                room -= needed
                taken.append(request)
                self.fleet.give(request, worker)
                self._moved[request.id] = now
            if len(taken) == most:
                break
        return taken

    def _may_move(self, request: Request, worker: Worker, other: Worker) -> bool:
        return (
            request.arrival <= other.seen  # the other could not start it
            and request.id not in self._moved
            and not worker.core.never_fits(request)
            and worker.core.pool.has(worker.blocks_to_start(request))
        )

    def _forget_moves(self, now: float) -> None:
        while self._moved:
            request_id, then = next(iter(self._moved.items()))
            if then + MOVE_SECONDS > now:
                return
            del self._moved[request_id]
