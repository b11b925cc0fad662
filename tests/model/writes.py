"""One call to Redis as moves: it lands, its answer is lost, or a copy of it lands late."""

from collections.abc import Iterator

from tests.model.checker import Move
from tests.model.gateway import publish
from tests.model.keys import Op, call
from tests.model.settings import ANSWER_LOST, LANDS_LATE, Settings
from tests.model.state import State


class Writes:
    """What processes have in common: they call Redis, and that may go wrong."""

    def __init__(self, state: State, settings: Settings) -> None:
        self.state = state
        self.settings = settings

    def land(self, op: Op) -> tuple[State, str]:
        redis, answer, published = call(self.state.redis, op, self.settings.without)
        gateways = self.state.gateways
        if published:
            gateways = tuple(publish(gateway, published, self.settings) for gateway in gateways)
        return self.state._replace(redis=redis, gateways=gateways), answer

    def fault(self, kind: str, name: str, state: State) -> Iterator[Move[State]]:
        if self.state.faults and kind in self.settings.faults:
            state = state._replace(faults=self.state.faults - 1)
            yield Move(f"{name} ({kind})", state, is_fault=True)

    def unanswered(self, who: str, op: Op, caller: State) -> Iterator[Move[State]]:
        """The two ways not to get an answer; `caller` is the state of one who will repeat."""
        landed, _ = Writes(caller, self.settings).land(op)
        yield from self.fault(ANSWER_LOST, f"{who} {op.name} {op.args}", landed)
        late = caller._replace(late=(*caller.late, op))
        yield from self.fault(LANDS_LATE, f"{who} {op.name} {op.args}", late)
