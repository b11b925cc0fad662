"""Random calls to the bus, for one that is real and one that is a model: what a schedule may do.

Few names and small numbers, so that calls meet: stale epochs, repeated ids, closed logs, ended
journals, entries that are gone, garbage.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common import bus
from common.bus import Cursors, Lease
from common.entries import MAX_ID
from common.messages import (
    Control,
    ControlKind,
    FinishReason,
    GatewayId,
    RequestId,
    SubmissionId,
    WorkerId,
)
from tests.common.conftest import BackDoor, Bus
from tests.common.examples import batch, end, head, hello, plan, result, submit

WORKERS = [WorkerId(f"w{number}") for number in range(4)]
REQUESTS = [RequestId(f"{name}.0") for name in "abc"]
GATEWAYS = [GatewayId("gateway-1"), GatewayId("gateway-2")]
GPU = "GPU-7"
Answer = Any


@dataclass
class Side:
    """One of the two, and what its own ids are."""

    bus: Bus
    back_door: BackDoor

    async def nth(self, stream: str, number: int) -> str:
        """Ids that a server gives are its own; one that is not there is asked for too."""
        ids = await self.back_door.ids(stream)
        return ids[number % len(ids)] if ids else "1-0"


Call = Callable[[Side], Awaitable[Answer]]


@dataclass(frozen=True)
class Command:
    what: str
    call: Call


class Commands:
    """The calls of one seed, one after the other."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lease = Lease()
        self.old = Lease()

    def next(self) -> Command:
        kinds = (self._write, self._play, self._read, self._spoil)
        return self.rng.choices(kinds, (6, 5, 2, 1))[0]()

    # --- The scheduler's ----------------------------------------------------------------------

    def _write(self) -> Command:
        rng = self.rng
        if rng.random() < 0.15:
            return self._take()
        epoch = self.lease.epoch if rng.random() < 0.85 else rng.randrange(3)
        writes = [self._one_write() for _ in range(rng.choice((1, 1, 3)))]
        entry = rng.randrange(4)

        async def call(side: Side) -> Answer:
            own = [await _with_own_ids(side, write, entry) for write in writes]
            return await side.bus.write(epoch, own)

        return Command(f"write {epoch} {writes} {entry}", call)

    def _take(self) -> Command:
        holder = self.rng.choice(("one", "two"))
        known = self.rng.choice((self.lease, self.old, None, None))  # None: as it stands

        async def call(side: Side) -> Answer:
            seen = await side.bus.lease() if known is None else known
            taken = await side.bus.lease_take(holder, seen)
            if taken is not None and taken != self.lease:
                self.old, self.lease = self.lease, taken
            return taken

        return Command(f"lease_take {holder} {known}", call)

    def _one_write(self) -> bus.Write:
        rng = self.rng
        worker, request, gateway = map(rng.choice, (WORKERS, REQUESTS, GATEWAYS))
        step, total, index = (rng.randint(1, 4) for _ in range(3))
        tokens = tuple(rng.randrange(2) for _ in range(rng.randint(0, 3)))
        reason = rng.choice((FinishReason.LENGTH, FinishReason.STOP))
        ended = replace(end(kept=total, request=request), reason=reason)
        return rng.choice(
            (
                bus.WritePlan(worker, plan(step, request)),
                bus.WriteHead(head(request, entry=f"{index}-0")),
                bus.WriteTokens(request, total, tokens),
                bus.WriteEnd(total, ended, (gateway,)),
                bus.SetOwner(request, worker),
                bus.SetSuspect(request, step),
                bus.SetStatus(rng.choice(("summary", "other")), b'{"epoch":%d}' % step),
                bus.SetShare("alice", bus.Share(float(step), 2.0)),
                bus.AddTimeline(index, b'{"step":%d}' % step),
                bus.AddDead(index, b"{}"),
                bus.CloseLog(worker),
                bus.CloseSteps(worker),
                bus.DropOwner(request),
                bus.DropSuspect(request),
                bus.DropShare("alice"),
                bus.DropSubmit(""),
                bus.DropControl(""),
                bus.DropWorker(worker),
                bus.DropGateway(gateway),
                bus.TrimLog(worker, step),
                bus.TrimSteps(worker, step),
                bus.ExpireJournal(request, 600.0),
                bus.ExpireWorker(worker, 600.0, log=rng.random() < 0.5),
            )
        )

    # --- The others' --------------------------------------------------------------------------

    def _play(self) -> Command:
        rng = self.rng
        worker, request, gateway = map(rng.choice, (WORKERS, REQUESTS, GATEWAYS))
        number, lease = rng.randint(1, 4), rng.choice((self.lease, self.old))
        found = replace(result(number, request, token=rng.randrange(2)))
        says = hello(worker, beat=number)
        asked = submit(rng.choice("ab"))
        control = Control(ControlKind.STOP, request, kept=number)
        return rng.choice(
            (
                Command(f"register {worker}", lambda side: side.bus.register(says)),
                Command(f"register {worker} again", lambda side: side.bus.register(says)),
                Command(f"beat {worker}", lambda side: side.bus.beat(says)),
                Command(
                    f"commit {worker} {found}",
                    lambda side: side.bus.commit(worker, found, batch(found)),
                ),
                Command(
                    f"commit {worker} {found} again",
                    lambda side: side.bus.commit(worker, found, batch(found)),
                ),
                Command(f"renew {lease}", lambda side: side.bus.lease_renew(lease)),
                Command(f"leave {lease}", lambda side: side.bus.lease_leave(lease)),
                Command(f"leave {lease}", lambda side: side.bus.lease_leave(lease)),
                Command("submit", lambda side: side.bus.submit(asked)),
                Command("control", lambda side: side.bus.control(control)),
                Command(f"beat {gateway}", lambda side: side.bus.beat_gateway(gateway, number)),
                Command(f"leave {gateway}", lambda side: side.bus.leave_gateway(gateway)),
                Command("secret", lambda side: side.bus.secret(b"%d" % number)),
                Command("gpu take", lambda side: side.bus.gpu_take(GPU, "one", lease)),
                Command("gpu renew", lambda side: side.bus.gpu_renew(GPU, lease)),
                Command("gpu leave", lambda side: side.bus.gpu_leave(GPU, lease)),
            )
        )

    def _read(self) -> Command:
        rng = self.rng
        worker, request = map(rng.choice, (WORKERS, REQUESTS))
        after = rng.randrange(3)
        cursors = Cursors(logs={worker: after})
        return rng.choice(
            (
                Command("lease", lambda side: side.bus.lease()),
                Command("owners", lambda side: side.bus.owners()),
                Command("owner", lambda side: side.bus.owner(request)),
                Command("suspects", lambda side: side.bus.suspects()),
                Command("shares", lambda side: side.bus.shares()),
                Command("workers", lambda side: side.bus.workers()),
                Command("gateways", lambda side: side.bus.gateways()),
                Command("journals", lambda side: side.bus.journals(REQUESTS)),
                Command("unexpired", _unexpired),
                Command(f"log {worker} {after}", lambda side: side.bus.read_log(worker, after)),
                Command(
                    f"plans {worker} {after}",
                    lambda side: side.bus.read_plans(worker, after, 0.0),
                ),
                Command(f"news {cursors}", lambda side: _news(side, cursors)),
                Command("status", lambda side: side.bus.status()),
                Command("fields", lambda side: side.bus.status_fields()),
                Command("timeline", lambda side: side.bus.recent("timeline", 2)),
                Command("open", lambda side: side.bus.num_open()),
                Command("gpus", lambda side: side.bus.gpu_leases([GPU, "GPU-8"])),
            )
        )

    def _spoil(self) -> Command:
        """What a person may do, or a server of another version: garbage under the next id."""
        stream = self.rng.choice(("requests", "control", "status"))
        if stream == "status":
            return Command(
                "spoil workers",
                lambda side: side.back_door.set("workers", b"w9", b"{"),
            )
        return Command(
            f"spoil {stream}", lambda side: side.back_door.add(stream, "*", {b"kind": b"?"})
        )


async def _with_own_ids(side: Side, write: bus.Write, number: int) -> bus.Write:
    if isinstance(write, bus.DropSubmit):
        return bus.DropSubmit(await side.nth("requests", number))
    if isinstance(write, bus.DropControl):
        return bus.DropControl(await side.nth("control", number))
    return write


async def _unexpired(side: Side) -> Sequence[RequestId]:
    return sorted(await side.bus.unexpired_journals())


async def _news(side: Side, cursors: Cursors) -> Answer:
    """Without the ids that are the server's own."""
    news = await side.bus.news(cursors, 0.0)
    return (
        [read for _, read in news.submits],
        [read for _, read in news.controls],
        news.results,
        news.closed,
        [stream for stream, _ in news.garbage],
        (news.requests_cursor is None, news.control_cursor is None, news.more_requests),
    )


__all__ = ["GATEWAYS", "MAX_ID", "Command", "Commands", "Side", "SubmissionId"]
