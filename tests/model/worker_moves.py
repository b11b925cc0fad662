"""What a worker may do next: register, open its log, commit its next step, start over, crash."""

from collections.abc import Iterator

from tests.model.checker import Move
from tests.model.keys import Op, Row, put
from tests.model.settings import WORKER_CRASHES
from tests.model.state import State, Worker
from tests.model.writes import Writes

OPENS = {"registering": "register", "opening": "open"}  # what it calls


class WorkerMoves(Writes):
    def moves(self, name: int) -> Iterator[Move[State]]:
        worker = self.state.workers[name]
        who = f"worker {name}"
        if worker.phase == "unborn":
            if self._may_start(name):
                registering = Worker("registering")
                yield from self._worker_write(name, registering, Op("register", 0, (name,)))
            return
        if not worker.lives:
            return
        gone = self._with_worker(name, Worker("gone"))
        yield from self.fault(WORKER_CRASHES, who, gone)
        if worker.phase in OPENS:
            yield from self._worker_write(name, worker, Op(OPENS[worker.phase], 0, (name,)))
        elif name not in self.state.redis.workers or name in self.state.redis.closed_steps:
            yield Move(f"{who} sees that it was given up", gone)
        elif len(self.state.redis.steps[name]) > worker.done:
            for result in self._results(name, worker):
                yield from self._commit(name, worker._replace(result=result))

    def _may_start(self, name: int) -> bool:
        workers = self.state.workers
        is_next = name == 0 or workers[name - 1].phase != "unborn"
        return is_next and sum(worker.lives for worker in workers) < self.settings.workers

    def _worker_write(self, name: int, worker: Worker, op: Op) -> Iterator[Move[State]]:
        who = f"worker {name}"
        caller = self._with_worker(name, worker)
        landed, answer = Writes(caller, self.settings).land(op)
        after = {"register": "opening", "open": "running"}[op.name]
        after = "gone" if answer != "OK" else after
        landed = landed._replace(workers=put(landed.workers, name, Worker(after)))
        yield Move(f"{who} {op.name}: {answer}", landed)
        yield from self.unanswered(who, op, caller)

    def _results(self, name: int, worker: Worker) -> Iterator[tuple[Row, ...]]:
        """What its next step samples: the result that waits for an answer, or all that can be."""
        if worker.result is not None:
            yield worker.result
            return
        plan = self.state.redis.steps[name][worker.done]
        rows = [row for row in plan.rows if row[0] not in worker.ended]
        yield tuple(self._row(name, *row, early=False) for row in rows)
        if self.settings.ends_early and any(self._is_early(position) for _, position in rows):
            yield tuple(self._row(name, *row, early=True) for row in rows)

    def _row(self, name: int, choice: int, position: int, *, early: bool) -> Row:
        ends = position == self.settings.tokens - 1 and not self.settings.endless
        if early and self._is_early(position):
            return Row(choice, position, -1 - name, ends=True)
        return Row(choice, position, 10 * (1 + name) + position, ends)

    def _is_early(self, position: int) -> bool:
        return position < self.settings.tokens - 1

    def _commit(self, name: int, worker: Worker) -> Iterator[Move[State]]:
        assert worker.result is not None
        op = Op("commit", 0, (name, worker.done + 1, worker.result))
        landed, answer = self.land(op)
        ended = worker.ended | {row.choice for row in worker.result if row.ends}
        after = Worker("running", ended, worker.done + 1)
        if answer == "CLOSED":
            after = Worker("gone")
        landed = landed._replace(workers=put(landed.workers, name, after))
        yield Move(f"worker {name} commit {op.args[1:]}: {answer}", landed)
        if self.settings.without == "no next commit before the answer":
            caller = self._with_worker(name, after)
        else:
            caller = self._with_worker(name, worker)
        yield from self.unanswered(f"worker {name}", op, caller)

    def _with_worker(self, name: int, worker: Worker) -> State:
        return self.state._replace(workers=put(self.state.workers, name, worker))
