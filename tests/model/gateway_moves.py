"""What a gateway may do next: submit, hear or miss a message, repair, cancel, stop, take over."""

from collections.abc import Iterator

from tests.model.checker import Move
from tests.model.gateway import Gateway, Stream, hear, repairs
from tests.model.keys import Control, Op, put
from tests.model.state import State
from tests.model.writes import Writes


class GatewayMoves(Writes):
    def moves(self, number: int, gateway: Gateway) -> Iterator[Move[State]]:
        who = f"gateway {number}"
        if gateway.phase == "unused":
            yield from self._resume(number)
        if not gateway.listens:
            return
        if gateway.phase == "submitting":
            answered = self._with_gateway(number, gateway._replace(phase="open"))
            yield from self._gateway_write(who, Op("submit", 0), answered)
        else:
            yield from self._wishes(number, gateway)
        if gateway.queue:
            heard = hear(gateway, self.settings)
            lost = gateway._replace(queue=gateway.queue[1:])
            yield Move(f"{who} hears {gateway.queue[0]}", self._with_gateway(number, heard))
            if heard != lost:
                yield Move(f"{who} misses a message", self._with_gateway(number, lost))
        if not self.settings.hears_all:
            yield from self._repairs(number, gateway)

    def _repairs(self, number: int, gateway: Gateway) -> Iterator[Move[State]]:
        for name, after in repairs(self.state.redis, gateway, self.settings):
            if after != gateway:
                yield Move(f"gateway {number} {name}", self._with_gateway(number, after))

    def _wishes(self, number: int, gateway: Gateway) -> Iterator[Move[State]]:
        """What it asks of the scheduler: a cancel, or a stop where it found a stop string."""
        who, settings = f"gateway {number}", self.settings
        is_done = all(stream.done for stream in gateway.streams)
        if settings.cancels and not self.state.cancelled and not is_done:
            op = Op("control", 0, (Control("cancel"),))
            yield from self._gateway_write(who, op, self.state._replace(cancelled=True))
        for choice, stream in enumerate(gateway.streams):
            if settings.stop and len(stream.shown) == settings.stop and not stream.stop_sent:
                if stream.done:
                    continue
                op = Op("control", 0, (Control("stop", choice, settings.stop),))
                streams = put(gateway.streams, choice, stream._replace(stop_sent=True))
                sent = self._with_gateway(number, gateway._replace(streams=streams))
                yield from self._gateway_write(who, op, sent)

    def _resume(self, number: int) -> Iterator[Move[State]]:
        """The client comes with what the first gateway has shown it: that one died, or was left."""
        left = self.state.gateways[0]
        if left.phase != "open" or any(stream.done for stream in left.streams):
            return
        streams = tuple(Stream(stream.shown) for stream in left.streams)
        gateways = (Gateway("dead"), Gateway("open", streams=streams))
        attached = self.state._replace(gateways=gateways)
        yield from self._gateway_write(
            f"gateway {number}", Op("control", 0, (Control("attach"),)), attached
        )

    def _gateway_write(self, who: str, op: Op, answered: State) -> Iterator[Move[State]]:
        landed, answer = Writes(answered, self.settings).land(op)
        yield Move(f"{who} {op.name} {op.args}: {answer}", landed)
        yield from self.unanswered(who, op, self.state)

    def _with_gateway(self, number: int, gateway: Gateway) -> State:
        return self.state._replace(gateways=put(self.state.gateways, number, gateway))
