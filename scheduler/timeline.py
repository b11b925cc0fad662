"""The stream `timeline`: each step as it was decided, and all that it takes to replay it; pure."""

from typing import Any

import orjson

from common.bus import AddTimeline
from common.messages import StepPlan, StepResult, WorkerId
from scheduler.core.request import Request
from scheduler.fleet import Fleet, Worker


class Timeline:
    """Makes entries. Each tells what came and ended since the last one, too."""

    def __init__(self) -> None:
        self._index = 0
        self._came: list[tuple[str, str, int, int, int]] = []
        self._ended: list[tuple[str, int, str]] = []
        self._seconds: dict[WorkerId, list[tuple[int, float]]] = {}
        self._is_current = True  # there were entries since `rest` was asked

    def came(self, request: Request) -> None:
        most = request.ending.max_tokens
        self._came.append((request.id, request.tenant, request.num_prompt, most, request.priority))

    def ended(self, request: Request) -> None:
        self._ended.append((request.id, request.num_output, request.finish_reason or ""))

    def applied(self, worker: WorkerId, result: StepResult) -> None:
        self._seconds.setdefault(worker, []).append((result.step, round(result.seconds, 6)))

    def step(self, now: float, worker: Worker, plan: StepPlan) -> AddTimeline:
        """One iteration: who took part, with how many tokens; who came, who had to step back."""
        last = worker.core.last
        return self._entry(
            now,
            worker,
            step=plan.step,
            tokens=last.num_tokens,
            budget=last.budget,
            chunks=[(chunk.request_id, chunk.count) for chunk in plan.chunks],
            admitted=[(row.request_id, row.num_computed) for row in plan.admitted],
            preempted=last.preempted,
            passed=last.passed,
        )

    def rest(self, now: float, fleet: Fleet) -> list[AddTimeline]:
        """What no step has told of since this was asked the last time: of a pool that stands."""
        is_current, self._is_current = self._is_current, False
        if is_current:
            return []
        told = [
            self._entry(now, fleet.workers.get(worker), name=worker)
            for worker in list(self._seconds)
        ]
        if self._came or self._ended:
            told.append(self._entry(now, None))
        self._is_current = False
        return told

    def _entry(self, now: float, worker: Worker | None, name: str = "", **step: Any) -> AddTimeline:
        self._index += 1
        self._is_current = True
        came, self._came = self._came, []
        ended, self._ended = self._ended, []
        name = worker.id if worker else name
        entry = {
            "at": round(now, 6),
            "worker": name,
            **(step or NO_STEP),
            "came": came,
            "ended": ended,
            "seconds": self._seconds.pop(WorkerId(name), []),
            "running": len(worker.core.running) if worker else 0,
            "waiting": len(worker.core.waiting) if worker else 0,
            "free_blocks": worker.core.pool.num_free if worker else 0,
        }
        return AddTimeline(self._index, orjson.dumps(entry))


NO_STEP: dict[str, Any] = {
    "step": 0,
    "tokens": 0,
    "budget": 0,
    "chunks": [],
    "admitted": [],
    "preempted": [],
    "passed": [],
}
