"""All that there is at one instant, and how it begins."""

from typing import NamedTuple

from tests.model.gateway import Gateway, Stream
from tests.model.keys import Log, Op, Redis, Row, put
from tests.model.scheduler import Leader, take_over
from tests.model.settings import Settings


class Worker(NamedTuple):
    """One process, known by the name that it has now."""

    phase: str = "unborn"  # registering, opening, running, gone
    ended: frozenset[int] = frozenset()  # rows that ended by themselves
    done: int = 0  # last step committed
    result: tuple[Row, ...] | None = None  # of the next step, if its commit was not answered

    @property
    def lives(self) -> bool:
        return self.phase not in {"unborn", "gone"}


class State(NamedTuple):
    redis: Redis
    leaders: tuple[Leader, ...]
    workers: tuple[Worker, ...]  # by name
    gateways: tuple[Gateway, ...]
    late: tuple[Op, ...]  # on their way, unknown to their callers
    faults: int  # that may still happen
    cancelled: bool  # the client has left


def first_state(settings: Settings) -> State:
    names, choices = settings.names, settings.choices
    redis = Redis(
        requests=(),
        added=0,
        control=(),
        epoch=0,
        workers=frozenset(),
        logs=(None,) * names,
        steps=((),) * names,
        journals=(None,) * choices,
        owners=(None,) * choices,
        suspects=(None,) * choices,
    )
    submitting = Gateway("submitting", streams=(Stream(),) * choices)
    gateways = (submitting, Gateway()) if settings.resumes else (submitting,)
    faults = settings.max_faults if settings.faults else 0
    state = State(
        redis, (Leader(), Leader()), (Worker(),) * names, gateways, (), faults, cancelled=False
    )
    return _serving(state, settings) if settings.is_serving else state


def _serving(state: State, settings: Settings) -> State:
    """A while later: a leader, an open worker, and a request that was just accepted."""
    redis, leader = take_over(state.redis, settings)
    redis = redis._replace(
        requests=(1,), added=1, workers=frozenset({0}), logs=put(redis.logs, 0, Log())
    )
    gateway = state.gateways[0]._replace(phase="open")
    return state._replace(
        redis=redis,
        leaders=(leader._replace(takes_over=False), Leader()),
        workers=put(state.workers, 0, Worker("running")),
        gateways=(gateway, *state.gateways[1:]),
    )
