"""The bus in memory, for tests: the protocol on a `MemoryServer`, with real encoding."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from common import bus, codec, entries
from common.bus import (
    Commit,
    Cursors,
    EntryId,
    Fields,
    FullError,
    Lease,
    Log,
    News,
    Outcome,
    Plans,
    Status,
)
from common.entries import CONTROL, MAX_ID, OPENED_ID, REQUESTS, behind, log_of, step_id
from common.memory_server import MemoryServer
from common.messages import (
    Control,
    GatewayId,
    Journal,
    Notice,
    RequestId,
    StepResult,
    Submit,
    TokenBatch,
    WorkerHello,
    WorkerId,
)


class MemoryBus:
    """All three faces. Every operation yields to the loop once, before it acts."""

    def __init__(self, server: MemoryServer) -> None:
        self.server = server

    # Gateway

    async def submit(self, submit: Submit) -> None:
        await asyncio.sleep(0)
        if self.server.full:
            raise FullError("no memory left for new requests")
        self.server.add_next(REQUESTS, entries.submit_fields(submit))

    async def control(self, control: Control) -> None:
        await asyncio.sleep(0)
        self.server.add_next(CONTROL, entries.control_fields(control))

    async def num_open(self) -> int:
        await asyncio.sleep(0)
        return len(self.server.stream(REQUESTS).ids)

    async def notices(self, gateway: GatewayId) -> AsyncIterator[Notice]:
        queue = self.server.subscribe(gateway)
        try:
            while True:
                yield await queue.get()
        finally:
            self.server.unsubscribe(gateway, queue)

    async def beat_gateway(self, gateway: GatewayId, beat: int) -> None:
        await asyncio.sleep(0)
        self.server.hash("gateways")[gateway.encode()] = entries.gateway_value(beat)

    async def leave_gateway(self, gateway: GatewayId) -> None:
        await asyncio.sleep(0)
        self.server.hash("gateways").pop(gateway.encode(), None)

    async def status(self) -> Status:
        await asyncio.sleep(0)
        return entries.read_status(self.server.hash("status").get(entries.STATUS_FIELD.encode()))

    async def owner(self, request: RequestId) -> WorkerId | None:
        await asyncio.sleep(0)
        owner = self.server.hash("owners").get(request.encode())
        return WorkerId(owner.decode()) if owner is not None else None

    async def journal(self, request: RequestId) -> Journal:
        await asyncio.sleep(0)
        stream = self.server.stream(f"journal:{request}")
        return entries.read_journal(request, stream.after("0-0"))

    # Worker

    async def register(self, hello: WorkerHello) -> None:
        await asyncio.sleep(0)
        self.server.hash("workers")[hello.worker_id.encode()] = codec.encode_hello(hello)
        await asyncio.sleep(0)
        log = log_of(hello.worker_id)
        if hello.worker_id.encode() in self.server.hash("workers"):
            self.server.add(log, OPENED_ID, entries.OPENED)

    async def beat(self, hello: WorkerHello) -> bool:
        await asyncio.sleep(0)
        workers = self.server.hash("workers")
        stands = hello.worker_id.encode() in workers
        if stands:
            workers[hello.worker_id.encode()] = codec.encode_hello(hello)
        return stands

    async def read_plans(self, worker: WorkerId, after: int, block_seconds: float) -> Plans:
        await asyncio.sleep(0)
        key = f"steps:{worker}"
        if not self.server.stream(key).after(behind(after)):
            await self.server.wait([key], block_seconds)
        return entries.read_plans(key, self.server.stream(key).after(behind(after)))

    async def commit(
        self, worker: WorkerId, result: StepResult, notices: Mapping[GatewayId, TokenBatch]
    ) -> Commit:
        await asyncio.sleep(0)
        key, entry = log_of(worker), step_id(result.step)
        if key not in self.server.streams:
            return Commit.CLOSED
        outcome = Commit.OK
        if not self.server.add(key, entry, entries.result_fields(result)):
            if self.server.stream(key).last != (result.step, 0):
                return Commit.CLOSED
            outcome = Commit.DUPLICATE
        for gateway, batch in notices.items():
            self.server.publish(gateway, codec.encode_token_batch(batch))
        return outcome

    # Scheduler

    async def lease(self) -> Lease:
        await asyncio.sleep(0)
        return self._lease()

    def _lease(self) -> Lease:
        return entries.read_lease(self.server.hash("lease"))

    async def lease_take(self, holder: str, seen: Lease) -> Lease | None:
        await asyncio.sleep(0)
        lease, taken = self._lease(), Lease(holder, seen.epoch + 1, 0)
        if lease not in (seen, taken, Lease()):
            return None
        self.server.hashes["lease"] = entries.lease_fields(taken)
        return taken

    async def lease_renew(self, lease: Lease) -> Lease | None:
        await asyncio.sleep(0)
        stands = self._lease()
        if (stands.holder, stands.epoch) != (lease.holder, lease.epoch):
            return None
        renewed = Lease(stands.holder, stands.epoch, stands.beat + 1)
        self.server.hashes["lease"] = entries.lease_fields(renewed)
        return renewed

    async def write(self, epoch: int, writes: Sequence[bus.Write]) -> list[Outcome]:
        outcomes = []
        for write in writes:
            await asyncio.sleep(0)
            lease = self._lease()
            if lease == Lease() or lease.epoch != epoch:
                outcomes.append(Outcome.FENCED)
            else:
                landed = WRITERS[type(write)](self.server, epoch, write)
                outcomes.append(Outcome.OK if landed else Outcome.REFUSED)
        return outcomes

    async def news(self, cursors: Cursors, block_seconds: float) -> News:
        await asyncio.sleep(0)
        after = {REQUESTS: cursors.requests, CONTROL: cursors.control}
        after |= {log_of(worker): behind(step) for worker, step in cursors.logs.items()}
        if not any(self.server.stream(key).after(cursor) for key, cursor in after.items()):
            await self.server.wait(after, block_seconds)
        return entries.read_news(
            {key: self.server.stream(key).after(cursor) for key, cursor in after.items()}
        )

    async def open_submits(self) -> list[tuple[EntryId, Submit]]:
        await asyncio.sleep(0)
        found = {REQUESTS: self.server.stream(REQUESTS).after("0-0")}
        return list(entries.read_news(found).submits)

    async def workers(self) -> dict[WorkerId, WorkerHello]:
        await asyncio.sleep(0)
        return entries.read_workers(self.server.hash("workers"))

    async def gateways(self) -> dict[GatewayId, int]:
        await asyncio.sleep(0)
        return entries.read_gateways(self.server.hash("gateways"))

    async def owners(self) -> dict[RequestId, WorkerId]:
        await asyncio.sleep(0)
        return entries.read_owners(self.server.hash("owners"))

    async def suspects(self) -> dict[RequestId, int]:
        await asyncio.sleep(0)
        return entries.read_suspects(self.server.hash("suspects"))

    async def journals(self, requests: Sequence[RequestId]) -> list[Journal]:
        return [await self.journal(request) for request in requests]

    async def unexpired_journals(self) -> list[RequestId]:
        await asyncio.sleep(0)
        journals = [key for key in self.server.streams if key.startswith("journal:")]
        return [
            RequestId(key.removeprefix("journal:"))
            for key in journals
            if key not in self.server.expiring
        ]

    async def read_log(self, worker: WorkerId, after: int) -> Log:
        await asyncio.sleep(0)
        key = log_of(worker)
        if key not in self.server.streams:
            return Log(exists=False)
        return entries.read_log(key, self.server.stream(key).after(behind(after)))

    # Operator

    async def status_fields(self) -> dict[str, bytes]:
        await asyncio.sleep(0)
        return {field.decode(): value for field, value in self.server.hash("status").items()}

    async def recent(self, stream: str, num_entries: int) -> list[tuple[EntryId, Fields]]:
        await asyncio.sleep(0)
        return self.server.stream(stream).after("0-0")[-num_entries:]

    async def length(self, stream: str) -> int:
        await asyncio.sleep(0)
        return len(self.server.stream(stream).ids)

    async def connect(self) -> None:
        await asyncio.sleep(0)

    async def aclose(self) -> None:
        await asyncio.sleep(0)


# --- The scheduler's writes: each changes one key, or nothing and answers False ---------------


def _write_once(server: MemoryServer, key: str, entry: EntryId, fields: Fields) -> bool:
    """An id that is refused counts as landed only if this very entry stands there."""
    return server.add(key, entry, fields) or server.stream(key).get(entry) == fields


def _write_journal(
    server: MemoryServer, request: RequestId, entry: EntryId, fields: Fields
) -> bool:
    """The head first and once; nothing after an end."""
    key = f"journal:{request}"
    stream = server.stream(key)
    if (stream.last == (0, 0)) != (entry == OPENED_ID) or stream.last[1] == 2:
        return stream.get(entry) == fields
    return _write_once(server, key, entry, fields)


def _head(server: MemoryServer, _epoch: int, write: bus.WriteHead) -> bool:
    head = write.head
    return _write_journal(server, head.request_id, OPENED_ID, entries.head_fields(head))


def _tokens(server: MemoryServer, _epoch: int, write: bus.WriteTokens) -> bool:
    fields = entries.tokens_fields(write.tokens)
    return _write_journal(server, write.request_id, f"{write.total}-0", fields)


def _end(server: MemoryServer, _epoch: int, write: bus.WriteEnd) -> bool:
    fields = entries.end_fields(write.end)
    landed = _write_journal(server, write.end.request_id, f"{write.total}-2", fields)
    if landed:
        for gateway in write.gateways:
            server.publish(gateway, codec.encode_ended(write.end))
    return landed


def _owner(server: MemoryServer, _epoch: int, write: bus.SetOwner) -> bool:
    log, journal = log_of(write.worker), f"journal:{write.request_id}"
    open_log = log in server.streams and server.stream(log).get(MAX_ID) is None
    open_journal = journal in server.streams and server.stream(journal).last[1] != 2
    if open_log and open_journal:
        server.hash("owners")[write.request_id.encode()] = write.worker.encode()
    return open_log and open_journal


def _set(server: MemoryServer, key: str, field: str, value: bytes) -> bool:
    server.hash(key)[field.encode()] = value
    return True


def _drop(server: MemoryServer, key: str, field: str) -> bool:
    server.hash(key).pop(field.encode(), None)
    return True


def _delete(server: MemoryServer, key: str, entry: EntryId) -> bool:
    server.stream(key).delete(entry)
    return True


def _trim(server: MemoryServer, key: str, before: int) -> bool:
    server.stream(key).trim(step_id(before))
    return True


def _expire(server: MemoryServer, key: str, seconds: float) -> bool:
    if key in server.streams:
        server.expiring[key] = seconds
    return True


def _bounded(server: MemoryServer, key: str, entry: EntryId, value: bytes) -> bool:
    landed = _write_once(server, key, entry, entries.shown_fields(value))
    server.stream(key).keep(MAX_SHOWN)
    return landed


MAX_SHOWN = 1000  # entries of `timeline` and `dead`

WRITERS: dict[type, Callable[[MemoryServer, int, Any], bool]] = {
    bus.WritePlan: lambda s, _, w: _write_once(
        s, f"steps:{w.worker}", step_id(w.plan.step), entries.plan_fields(w.plan)
    ),
    bus.WriteHead: _head,
    bus.WriteTokens: _tokens,
    bus.WriteEnd: _end,
    bus.SetOwner: _owner,
    bus.SetSuspect: lambda s, _, w: _set(s, "suspects", w.request_id, b"%d" % w.deaths),
    bus.SetStatus: lambda s, _, w: _set(s, "status", w.field, w.value),
    bus.AddTimeline: lambda s, epoch, w: _bounded(s, "timeline", f"{epoch}-{w.index}", w.value),
    bus.AddDead: lambda s, epoch, w: _bounded(s, "dead", f"{epoch}-{w.index}", w.value),
    bus.CloseLog: lambda s, _, w: _write_once(s, log_of(w.worker), MAX_ID, entries.CLOSED),
    bus.CloseSteps: lambda s, _, w: _write_once(s, f"steps:{w.worker}", MAX_ID, entries.CLOSED),
    bus.DropOwner: lambda s, _, w: _drop(s, "owners", w.request_id),
    bus.DropSuspect: lambda s, _, w: _drop(s, "suspects", w.request_id),
    bus.DropSubmit: lambda s, _, w: _delete(s, REQUESTS, w.entry),
    bus.DropControl: lambda s, _, w: _delete(s, CONTROL, w.entry),
    bus.DropWorker: lambda s, _, w: _drop(s, "workers", w.worker),
    bus.DropGateway: lambda s, _, w: _drop(s, "gateways", w.gateway),
    bus.TrimLog: lambda s, _, w: _trim(s, log_of(w.worker), w.before),
    bus.TrimSteps: lambda s, _, w: _trim(s, f"steps:{w.worker}", w.before),
    bus.ExpireJournal: lambda s, _, w: _expire(s, f"journal:{w.request_id}", w.seconds),
    bus.ExpireWorker: lambda s, _, w: _expire(
        s, log_of(w.worker) if w.log else f"steps:{w.worker}", w.seconds
    ),
}
