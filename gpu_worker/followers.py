"""Rank 0's side of a model on several ranks: the processes of the others, and their lock-step.

All ranks read the same plans from Redis, and draw the same tokens, since each has all logits, bit
by bit: a rank computes its part of them alone, and what is gathered is copied. What rank 0 says is
only which plan is launched or finished now. So all do the same ones, also where a life ends with
plans behind the last one, and nobody is left behind in a sum that the others never join.

A result is given out when every follower has its plan: until then it is not committed, and what is
not committed is not trimmed from `steps`.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Protocol

import structlog

from common.config import WorkerSettings
from common.messages import StepPlan, StepResult, WorkerId
from gpu_worker.engine import Capacity, Engine, Launched
from gpu_worker.rank_channel import Channel

log = structlog.get_logger()

NEXT_LIFE_SECONDS = 10.0  # a follower ends its step when rank 0 does, or never
END_SECONDS = 5.0
REFUSED = 2  # exit status where settings or model are wrong
COMMAND = (sys.executable, "-m", "gpu_worker.follower")


class Followers:
    """Ranks 1, 2 … of this worker. Leaving it ends their processes."""

    def __init__(self, processes: Sequence["Follower"]) -> None:
        self._processes = processes

    def __enter__(self) -> "Followers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.end()

    def load(self, ranks: Sequence[WorkerSettings], port: int) -> None:
        """They meet rank 0 there, and load their parts of the model as their settings say."""
        for process, settings in zip(self._processes, ranks, strict=True):
            start = {"rank": process.rank, "port": port, "settings": asdict(settings)}
            process.channel.send("start", json.dumps(start))

    def loaded(self) -> None:
        self._hear("ready")

    def begin_life(self, name: WorkerId) -> None:
        """They forget all rows, and read the plans of this name. RuntimeError if one cannot."""
        self._say("life", name)
        self._hear("ready", seconds=NEXT_LIFE_SECONDS)

    def launch(self, step: int) -> None:
        self._say("launch", str(step))

    def finish(self, step: int) -> None:
        """When all have its plan."""
        self._hear("launch", str(step))
        self._say("finish", str(step))

    def _say(self, kind: str, value: str) -> None:
        for process in self._processes:
            process.channel.send(kind, value)

    def _hear(self, kind: str, value: str = "", seconds: float | None = None) -> None:
        """Wait until all have said it. What they said of steps that failed here is passed over."""
        for process in self._processes:
            process.channel.limit(seconds)
            try:
                while (said := process.channel.receive()) != (kind, value):
                    if said[0] != "launch":
                        raise RuntimeError(f"rank {process.rank} says {said}, not {kind} {value}")
            except TimeoutError:
                raise RuntimeError(f"rank {process.rank} does not end its step") from None


class Follower(Protocol):
    rank: int
    channel: Channel

    def end(self) -> None: ...


class FollowerProcess:
    """A child process. If it ends before `end`, this process does too, at once.

    Nothing can be computed without it, and the engine may wait for it for ever.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(COMMAND, stdin=theirs.fileno())
        self.channel = Channel(ours)
        self._is_ending = False
        self.channel.watch(self._gone)

    def end(self) -> None:
        self._is_ending = True
        self.channel.hang_up()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _gone(self) -> None:
        if self._is_ending:
            return
        status = self._process.wait()
        if status != REFUSED:  # which has said why
            log.error("a rank of this worker has ended", rank=self.rank, status=status)
        os._exit(status if status > 0 else 1)


class LeadingEngine:
    """Rank 0's engine: as `Engine`, and its followers launch and finish in the same order.

    The order matters: whether a row has ended is known when the step before is finished. A plan
    that contradicts the rows raises EngineError on every rank, before any sum.
    """

    def __init__(self, engine: Engine, followers: Followers) -> None:
        self._engine = engine
        self._followers = followers

    @property
    def capacity(self) -> Capacity:
        return self._engine.capacity

    def launch(self, plan: StepPlan) -> Launched:
        self._followers.launch(plan.step)
        return _Led(self._engine.launch(plan), plan.step, self._followers)

    def execute(self, plan: StepPlan) -> StepResult:
        return self.launch(plan).finish()

    def reset(self) -> None:
        self._engine.reset()


@dataclass(frozen=True, slots=True)
class _Led:
    launched: Launched
    step: int
    followers: Followers

    @property
    def is_done(self) -> bool:
        return self.launched.is_done

    def wait(self) -> None:
        self.launched.wait()

    def finish(self) -> StepResult:
        self.followers.finish(self.step)
        return self.launched.finish()
