"""The bus in memory, for tests: the protocol on a `MemoryServer`, with real encoding."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from common import bus, codec, entries, hashes
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
    Share,
    Status,
)
from common.entries import CONTROL, OPENED_ID, REQUESTS, behind, log_of, step_id
from common.memory_server import MemoryServer
from common.memory_writes import WRITERS
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

PAGE = 64  # entries of a stream that one look at the news brings


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
        self.server.hash("gateways")[gateway.encode()] = hashes.gateway_value(beat)

    async def leave_gateway(self, gateway: GatewayId) -> None:
        await asyncio.sleep(0)
        self.server.hash("gateways").pop(gateway.encode(), None)

    async def secret(self, candidate: bytes) -> bytes:
        await asyncio.sleep(0)
        return self.server.hash("secret").setdefault(hashes.SECRET_FIELD.encode(), candidate)

    async def status(self) -> Status:
        await asyncio.sleep(0)
        return hashes.read_status(self.server.hash("status").get(hashes.STATUS_FIELD.encode()))

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

    # GPUs

    async def gpu_leases(self, gpus: Sequence[str]) -> list[Lease]:
        await asyncio.sleep(0)
        return [self._lease(f"gpu:{gpu}") for gpu in gpus]

    async def gpu_take(self, gpu: str, holder: str, seen: Lease) -> Lease | None:
        return await self._take(f"gpu:{gpu}", holder, seen)

    async def gpu_renew(self, gpu: str, lease: Lease) -> Lease | None:
        return await self._renew(f"gpu:{gpu}", lease)

    async def gpu_leave(self, gpu: str, lease: Lease) -> None:
        await self._leave(f"gpu:{gpu}", lease)

    # Scheduler

    async def lease(self) -> Lease:
        await asyncio.sleep(0)
        return self._lease("lease")

    async def lease_take(self, holder: str, seen: Lease) -> Lease | None:
        return await self._take("lease", holder, seen)

    async def lease_renew(self, lease: Lease) -> Lease | None:
        return await self._renew("lease", lease)

    async def lease_leave(self, lease: Lease) -> None:
        await self._leave("lease", lease)

    def _lease(self, key: str) -> Lease:
        return hashes.read_lease(self.server.hash(key))

    def _held(self, key: str, lease: Lease) -> Lease | None:
        """The lease as it stands, if it stands and is still this one."""
        stands = self._lease(key)
        is_same = (stands.holder, stands.epoch) == (lease.holder, lease.epoch)
        return stands if is_same and self.server.hash(key) else None

    async def _take(self, key: str, holder: str, seen: Lease) -> Lease | None:
        await asyncio.sleep(0)
        lease, taken = self._lease(key), Lease(holder, seen.epoch + 1, 0)
        if lease not in (seen, taken, Lease()):
            return None
        self.server.hashes[key] = hashes.lease_fields(taken)
        return taken

    async def _renew(self, key: str, lease: Lease) -> Lease | None:
        await asyncio.sleep(0)
        if (stands := self._held(key, lease)) is None:
            return None
        renewed = replace(stands, beat=stands.beat + 1)
        self.server.hashes[key] = hashes.lease_fields(renewed)
        return renewed

    async def _leave(self, key: str, lease: Lease) -> None:
        await asyncio.sleep(0)
        if (stands := self._held(key, lease)) is not None:
            self.server.hashes[key] = hashes.lease_fields(replace(stands, holder=""))

    async def write(self, epoch: int, writes: Sequence[bus.Write]) -> list[Outcome]:
        outcomes = []
        for write in writes:
            await asyncio.sleep(0)
            lease = self._lease("lease")
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
        found = {key: self.server.stream(key).after(cursor) for key, cursor in after.items()}
        news = entries.read_news({key: of_stream[:PAGE] for key, of_stream in found.items()})
        return replace(news, more_requests=len(found[REQUESTS]) >= PAGE)

    async def write_and_wait(
        self, epoch: int, writes: Sequence[bus.Write], cursors: Cursors, block_seconds: float
    ) -> tuple[list[Outcome], News]:
        outcomes = await self.write(epoch, writes)
        return outcomes, await self.news(cursors, block_seconds)

    async def workers(self) -> dict[WorkerId, WorkerHello]:
        await asyncio.sleep(0)
        return hashes.read_workers(self.server.hash("workers"))

    async def gateways(self) -> dict[GatewayId, int]:
        await asyncio.sleep(0)
        return hashes.read_gateways(self.server.hash("gateways"))

    async def owners(self) -> dict[RequestId, WorkerId]:
        await asyncio.sleep(0)
        return hashes.read_owners(self.server.hash("owners"))

    async def suspects(self) -> dict[RequestId, int]:
        await asyncio.sleep(0)
        return hashes.read_suspects(self.server.hash("suspects"))

    async def shares(self) -> dict[str, Share]:
        await asyncio.sleep(0)
        return hashes.read_shares(self.server.hash("shares"))

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
