"""A scheduler and a worker that are played: every request is taken, and fed at a fixed rate."""

import asyncio
import time
from collections.abc import Sequence

from common.bus import (
    Cursors,
    DropOwner,
    DropSubmit,
    EntryId,
    ExpireJournal,
    Lease,
    SetOwner,
    SetStatus,
    Status,
    Write,
    WriteEnd,
    WriteHead,
)
from common.hashes import STATUS_FIELD, status_value
from common.messages import (
    Ended,
    FinishReason,
    JournalHead,
    RequestId,
    Sampled,
    StepResult,
    Submit,
    TokenBatch,
    WorkerHello,
    WorkerId,
)
from common.redis_bus import RedisBus

WORKER = WorkerId("w0")
BEAT_SECONDS = 0.25

Taken = list[tuple[EntryId, Submit]]


class ScriptedPool:
    """`run` beside everything else; then `take` some requests, `feed` them, and `end` them."""

    def __init__(self, bus: RedisBus) -> None:
        self.bus = bus
        self.epoch = 0
        self.step = 0
        self.cursors = Cursors()

    async def start(self) -> None:
        lease = await self.bus.lease_take("bench", Lease())
        assert lease is not None
        self.epoch = lease.epoch
        await self.bus.register(WorkerHello(WORKER, "m", "none", 9999, 16, 8192, 4096, 512))

    async def run(self) -> None:
        """Show life; until cancelled."""
        beat = 0
        while True:
            beat += 1
            value = status_value(Status(self.epoch, beat, steps=beat))
            await self.bus.write(self.epoch, [SetStatus(STATUS_FIELD, value)])
            await asyncio.sleep(BEAT_SECONDS)

    async def take(self, num_requests: int) -> Taken:
        taken: Taken = []
        while len(taken) < num_requests:
            news = await self.bus.news(self.cursors, 0.1)
            self.cursors.requests = news.requests_cursor or self.cursors.requests
            taken += news.submits
        for entry, submit in taken:
            (request,) = submit.request_ids()
            head = JournalHead(request, entry, 1, submit.tenant, submit.digest, submit.frame)
            await self.bus.write(self.epoch, [WriteHead(head), SetOwner(request, WORKER)])
        return taken

    async def feed(self, taken: Taken, tokens: Sequence[int], rate: float) -> list[float]:
        """One token for each, `rate` times a second. When each commit began, monotonic seconds."""
        requests: list[RequestId] = [submit.request_ids()[0] for _, submit in taken]
        gateway, moments = taken[0][1].gateway, []
        begin = time.monotonic()
        for position, token in enumerate(tokens):
            self.step += 1
            sampled = tuple(Sampled(request, position, token) for request in requests)
            moments.append(time.monotonic())
            result = StepResult(self.step, sampled, 0.0)
            await self.bus.commit(WORKER, result, {gateway: TokenBatch(sampled)})
            await asyncio.sleep(max(0.0, begin + (position + 1) / rate - time.monotonic()))
        return moments

    async def end(self, taken: Taken, num_tokens: int) -> None:
        for entry, submit in taken:
            (request,) = submit.request_ids()
            end = Ended(request, num_tokens, FinishReason.LENGTH)
            writes: list[Write] = [WriteEnd(0, end, (submit.gateway,)), DropOwner(request)]
            writes += [DropSubmit(entry), ExpireJournal(request, 60.0)]
            await self.bus.write(self.epoch, writes)
