"""Each write of a scheduler as the one function call that makes it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common import bus, codec, entries, hashes
from common.bus import Fields
from common.entries import OPENED_ID, step_id
from common.messages import RequestId
from common.redis_bus import wire
from common.redis_bus.keys import Keys
from common.redis_bus.wire import Arg, Command


@dataclass(frozen=True, slots=True)
class Writer:
    keys: Keys
    epoch: int
    max_shown: int  # entries that `timeline` and `dead` keep, about

    def command(self, write: bus.Write) -> Command:
        return COMMANDS[type(write)](self, write)

    def call(self, function: str, *keys: bytes, args: tuple[Arg, ...] = ()) -> Command:
        return wire.call(function, (self.keys.lease, *keys), self.epoch, *args)

    def journal(
        self, request: RequestId, entry: str, fields: Fields, messages: tuple[Arg, ...] = ()
    ) -> Command:
        args = (entry, 2 * len(fields), *wire.flat(fields), *messages)
        return self.call("journal", self.keys.journal(request), args=args)

    def drop(self, key: bytes, *command: Arg) -> Command:
        return self.call("drop", key, args=command)

    def show(self, stream: bytes, index: int, value: bytes) -> Command:
        args = (f"{self.epoch}-{index}", self.max_shown, value)
        return self.call("show", stream, args=args)

    def expire(self, key: bytes, seconds: float) -> Command:
        return self.drop(key, "PEXPIRE", max(1, int(seconds * 1000)))


def _plan(to: Writer, write: bus.WritePlan) -> Command:
    args = (step_id(write.plan.step), codec.encode_plan(write.plan))
    return to.call("plan", to.keys.steps(write.worker), args=args)


def _head(to: Writer, write: bus.WriteHead) -> Command:
    return to.journal(write.head.request_id, OPENED_ID, entries.head_fields(write.head))


def _tokens(to: Writer, write: bus.WriteTokens) -> Command:
    fields = entries.tokens_fields(write.tokens)
    return to.journal(write.request_id, f"{write.total}-0", fields)


def _end(to: Writer, write: bus.WriteEnd) -> Command:
    message = codec.encode_ended(write.end)
    messages = [part for gateway in write.gateways for part in (to.keys.tokens(gateway), message)]
    fields = entries.end_fields(write.end)
    return to.journal(write.end.request_id, f"{write.total}-2", fields, tuple(messages))


def _owner(to: Writer, write: bus.SetOwner) -> Command:
    log, journal = to.keys.results(write.worker), to.keys.journal(write.request_id)
    args = (write.request_id, write.worker)
    return to.call("set_owner", to.keys.owners, log, journal, args=args)


def _expire_worker(to: Writer, write: bus.ExpireWorker) -> Command:
    key = to.keys.results(write.worker) if write.log else to.keys.steps(write.worker)
    return to.expire(key, write.seconds)


COMMANDS: dict[type, Callable[[Writer, Any], Command]] = {
    bus.WritePlan: _plan,
    bus.WriteHead: _head,
    bus.WriteTokens: _tokens,
    bus.WriteEnd: _end,
    bus.SetOwner: _owner,
    bus.SetSuspect: lambda to, w: to.call(
        "set_suspect",
        to.keys.suspects,
        to.keys.journal(w.request_id),
        args=(w.request_id, w.deaths),
    ),
    bus.SetStatus: lambda to, w: to.call("set", to.keys.status, args=(w.field, w.value)),
    bus.SetShare: lambda to, w: to.call(
        "set", to.keys.shares, args=(w.tenant, hashes.share_value(w.share))
    ),
    bus.AddTimeline: lambda to, w: to.show(to.keys.timeline, w.index, w.value),
    bus.AddDead: lambda to, w: to.show(to.keys.dead, w.index, w.value),
    bus.CloseLog: lambda to, w: to.call("close", to.keys.results(w.worker)),
    bus.CloseSteps: lambda to, w: to.call("close", to.keys.steps(w.worker)),
    bus.DropOwner: lambda to, w: to.drop(to.keys.owners, "HDEL", w.request_id),
    bus.DropSuspect: lambda to, w: to.drop(to.keys.suspects, "HDEL", w.request_id),
    bus.DropShare: lambda to, w: to.drop(to.keys.shares, "HDEL", w.tenant),
    bus.DropSubmit: lambda to, w: to.drop(to.keys.requests, "XDEL", w.entry),
    bus.DropControl: lambda to, w: to.drop(to.keys.control, "XDEL", w.entry),
    bus.DropWorker: lambda to, w: to.drop(to.keys.workers, "HDEL", w.worker),
    bus.DropGateway: lambda to, w: to.drop(to.keys.gateways, "HDEL", w.gateway),
    bus.TrimLog: lambda to, w: to.drop(
        to.keys.results(w.worker), "XTRIM", "MINID", step_id(w.before)
    ),
    bus.TrimSteps: lambda to, w: to.drop(
        to.keys.steps(w.worker), "XTRIM", "MINID", step_id(w.before)
    ),
    bus.ExpireJournal: lambda to, w: to.expire(to.keys.journal(w.request_id), w.seconds),
    bus.ExpireWorker: _expire_worker,
}
