"""A scheduler and a worker in one task, on the bus in memory: answers are read from a script."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.bus import (
    Cursors,
    DropControl,
    DropOwner,
    DropSubmit,
    EntryId,
    ExpireJournal,
    Lease,
    News,
    Outcome,
    SetOwner,
    SetStatus,
    Status,
    Write,
    WriteEnd,
    WriteHead,
    WriteTokens,
)
from common.hashes import STATUS_FIELD, status_value
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from common.messages import (
    Control,
    ControlKind,
    Ended,
    FinishReason,
    GatewayId,
    JournalHead,
    RequestId,
    Sampled,
    StepResult,
    SubmissionId,
    Submit,
    TokenBatch,
    WorkerHello,
    WorkerId,
    submission_of,
)

WORKER = WorkerId("w0")
Script = Callable[[RequestId], Sequence[int]]


@dataclass
class Running:
    entry: EntryId
    submit: Submit
    gateways: list[GatewayId]  # that show it
    tokens: list[int] = field(default_factory=list)  # committed
    num_flushed: int = 0


class FakePool:
    """`run` until cancelled. One step gives each running request its next token.

    `script(request)` is the whole answer; it ends with STOP, or LENGTH at `max_tokens`.
    """

    def __init__(self, server: MemoryServer, script: Script) -> None:
        self.bus = MemoryBus(server)
        self.script = script
        self.admits = True  # False: requests stay in line
        self.steps = True  # False: nothing is computed
        self.num_flush = 4  # tokens of a request that wait for its journal
        self.status = Status()  # what is told beside counts
        self.max_request_tokens = 8192
        self.submits: list[Submit] = []  # all that came, copies too
        self.controls: list[Control] = []
        self.ends: dict[RequestId, Ended] = {}
        self.running: dict[RequestId, Running] = {}
        self._waiting: list[tuple[EntryId, Submit]] = []
        self._ending: dict[RequestId, tuple[FinishReason, int | None]] = {}
        self._cursors = Cursors()
        self._step = 0
        self._beat = 0
        self._lease = Lease()

    async def start(self) -> None:
        lease = await self.bus.lease_take("fake", Lease())
        assert lease is not None
        self._lease = lease
        await self.bus.register(
            WorkerHello(WORKER, "model", "cpu", 64, 16, self.max_request_tokens, 512, 64)
        )
        await self.report()

    async def run(self) -> None:
        while True:
            self._read(await self.bus.news(self._cursors, block_seconds=0.002))
            if self.admits:
                await self._admit()
            if self.steps:
                await self._compute()
            await self._end()
            await self.report()

    async def report(self) -> None:
        self._beat += 1
        status = Status(
            epoch=self._lease.epoch,
            beat=self._beat,
            steps=self._step,
            num_waiting=len(self._waiting),
            num_running=len(self.running),
            waiting_tokens=self.status.waiting_tokens,
            wait_seconds=self.status.wait_seconds,
        )
        await self._write(SetStatus(STATUS_FIELD, status_value(status)))

    def end(self, request: RequestId, reason: FinishReason) -> None:
        """End a running request as soon as possible."""
        self._ending[request] = (reason, None)

    async def _write(self, *writes: Write) -> list[Outcome]:
        return await self.bus.write(self._lease.epoch, writes)

    def _read(self, news: News) -> None:
        for entry, submit in news.submits:
            self.submits.append(submit)
            self._waiting.append((entry, submit))
        self._cursors.requests = news.requests_cursor or self._cursors.requests
        for _, control in news.controls:
            self.controls.append(control)
            self._obey(control)
        self._cursors.control = news.control_cursor or self._cursors.control
        self._done = [entry for entry, _ in news.controls]

    def _obey(self, control: Control) -> None:
        if control.kind is ControlKind.STOP:
            self._ending[RequestId(control.target)] = (FinishReason.STOP, control.kept)
        elif control.kind is ControlKind.CANCEL:
            for request in self.running:
                if submission_of(request) == control.target:
                    self._ending[request] = (FinishReason.CANCELLED, None)
        else:
            self._change_viewers(control)

    def _change_viewers(self, control: Control) -> None:
        """Whom nobody sees is cancelled, unless it is resumable: here, for as long as it takes."""
        for request, running in self.running.items():
            if submission_of(request) != control.target:
                continue
            others = [gateway for gateway in running.gateways if gateway != control.gateway]
            attach = [control.gateway] if control.kind is ControlKind.ATTACH else []
            running.gateways = others + attach
            if not running.gateways and not running.submit.resumable:
                self._ending[request] = (FinishReason.CANCELLED, None)

    def _cancelled(self) -> set[SubmissionId]:
        cancels = (c for c in self.controls if c.kind is ControlKind.CANCEL)
        return {SubmissionId(control.target) for control in cancels}

    async def _admit(self) -> None:
        for entry, submit in self._waiting:
            if submit.submission_id in self._cancelled():
                await self._write(DropSubmit(entry))
                continue
            for request in submit.request_ids():
                head = JournalHead(
                    request,
                    num_prompt=len(submit.prompts[0]),
                    tenant=submit.tenant,
                    digest=submit.digest,
                    frame=submit.frame,
                    entry=entry,
                )
                if await self._write(WriteHead(head)) == [Outcome.REFUSED]:
                    await self._write(DropSubmit(entry))  # a copy
                    break
                await self._write(SetOwner(request, WORKER))
                self.running[request] = Running(entry, submit, [submit.gateway])
        self._waiting.clear()

    async def _compute(self) -> None:
        sampled = []
        for request, running in self.running.items():
            script, most = self.script(request), running.submit.ending.max_tokens
            position = len(running.tokens)
            if request in self._ending:
                continue
            running.tokens.append(script[position])
            if position + 1 == len(script):
                self._ending[request] = (FinishReason.STOP, None)
            elif position + 1 == most:
                self._ending[request] = (FinishReason.LENGTH, None)
            sampled.append(Sampled(request, position, script[position]))
        if not sampled:
            return
        self._step += 1
        result = StepResult(self._step, tuple(sampled), 0.0)
        await self.bus.commit(WORKER, result, self._batches(sampled))
        for request, running in self.running.items():
            if len(running.tokens) - running.num_flushed >= self.num_flush:
                await self._flush(request, running)

    def _batches(self, sampled: Sequence[Sampled]) -> dict[GatewayId, TokenBatch]:
        gateways = {g for row in sampled for g in self.running[row.request_id].gateways}
        return {
            gateway: TokenBatch(
                tuple(row for row in sampled if gateway in self.running[row.request_id].gateways)
            )
            for gateway in gateways
        }

    async def _flush(self, request: RequestId, running: Running) -> None:
        if fresh := tuple(running.tokens[running.num_flushed :]):
            running.num_flushed = len(running.tokens)
            await self._write(WriteTokens(request, running.num_flushed, fresh))

    async def _end(self) -> None:
        for entry in self._done:
            await self._write(DropControl(entry))
        for request, (reason, kept) in list(self._ending.items()):
            del self._ending[request]
            if (running := self.running.pop(request, None)) is None:
                continue
            await self._flush(request, running)
            total = len(running.tokens)
            end = Ended(request, min(total, total if kept is None else kept), reason)
            self.ends[request] = end
            await self._write(WriteEnd(total, end, tuple(running.gateways)), DropOwner(request))
            if not any(other.entry == running.entry for other in self.running.values()):
                await self._write(DropSubmit(running.entry))
            await self._write(ExpireJournal(request, 60.0))
