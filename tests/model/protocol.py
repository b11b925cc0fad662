"""The delivery protocol as a model: two schedulers, workers, gateways, Redis, and what goes wrong.

    protocol                        here
    gateway, scheduler, worker      what they know and do with it: `gateway.py`, `scheduler.py`,
                                    `decisions.py`, `state.Worker`;
                                    what they may do next: `…_moves.py`
    a Redis function                `keys.py`: one call in one move
    a crash between single writes   any two moves of a process have a crash between them
    a lost answer                   the write happens and its caller does not know: it repeats it
    a late write                    a copy of the write goes to `State.late` and lands at any time,
                                    or never; its caller repeats it
    a false death, a takeover       `Leader.lost` names a worker that lives; the lease is taken
                                    from a leader that lives
    pub/sub loss                    the first message of a gateway's queue vanishes; never a fault,
                                    since it may happen at any time and as often as it likes

    "no token is lost …"            `promises.py`

Not here: time, hold, priority, drain, preemption, deadlines, loss of data in Redis.
"""

from collections.abc import Iterator

from tests.model.checker import Model, Move
from tests.model.gateway_moves import GatewayMoves
from tests.model.promises import at_rest, wrong
from tests.model.scheduler_moves import SchedulerMoves
from tests.model.settings import Settings
from tests.model.state import State, first_state
from tests.model.worker_moves import WorkerMoves
from tests.model.writes import Writes


def protocol(settings: Settings) -> Model[State]:
    return Model(
        first_state(settings),
        lambda state: moves(state, settings),
        lambda state: wrong(state, settings),
        lambda state: at_rest(state, settings),
    )


def moves(state: State, settings: Settings) -> Iterator[Move[State]]:
    """All that can happen next."""
    yield from LateMoves(state, settings).moves()
    for number in range(len(state.leaders)):
        yield from SchedulerMoves(state, settings).moves(number)
    for name in range(settings.names):
        yield from WorkerMoves(state, settings).moves(name)
    for number, gateway in enumerate(state.gateways):
        yield from GatewayMoves(state, settings).moves(number, gateway)


class LateMoves(Writes):
    """Calls whose callers have given up on them."""

    def moves(self) -> Iterator[Move[State]]:
        for number, op in enumerate(self.state.late):
            late = self.state.late[:number] + self.state.late[number + 1 :]
            landed, answer = self.land(op)
            yield Move(f"late {op.name} {op.args}: {answer}", landed._replace(late=late))
            yield Move(f"late {op.name} {op.args} never lands", self.state._replace(late=late))
