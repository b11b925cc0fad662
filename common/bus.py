"""What the services ask of the bus: three faces, one a role, in the words of the protocol.

Two implementations keep one contract (`tests/common/test_bus.py`): `RedisBus`, and `MemoryBus`
for tests. Whatever had no answer is repeated by the bus itself until it is answered or the caller
is cancelled: every operation here may happen twice and then changes nothing the second time.
`submit` and `control` give up after a bounded time instead, since a client waits.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from common.messages import (
    Control,
    Ended,
    GatewayId,
    Journal,
    JournalHead,
    Notice,
    RequestId,
    StepPlan,
    StepResult,
    Submit,
    TokenBatch,
    WorkerHello,
    WorkerId,
)

EntryId = str  # of a stream, as Redis prints it
Fields = Mapping[bytes, bytes]  # of an entry


class BusError(Exception):
    """The bus cannot do what was asked.

    BusError
      + UnavailableError   no answer in time
      + FullError          the server has no memory left for new work
      + ServerError        the server is unfit: too old, wrong settings; says what to do
    """


class UnavailableError(BusError): ...


class FullError(BusError): ...


class ServerError(BusError): ...


# --- Gateway ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Status:
    """What the active scheduler last said of itself (hash `status`, field `summary`)."""

    epoch: int = 0
    beat: int = 0  # grows while a scheduler leads
    steps: int = 0  # results applied in this epoch: forward progress
    num_waiting: int = 0
    num_held: int = 0  # of those that wait: they are to go on only when somebody says so
    num_running: int = 0
    waiting_tokens: int = 0  # not yet computed, of requests that wait
    tokens_per_second: float = 0.0  # output, lately
    wait_seconds: float = 0.0  # predicted for a request that arrives now
    cost_error: float = 0.0  # of the predicted time of a step, relative, on the whole
    num_preempted: int = 0  # rows that had to step back, in this epoch
    cached_tokens: int = 0  # of prompts, found in the prefix cache, in this epoch


class GatewayBus(Protocol):
    async def submit(self, submit: Submit) -> None:
        """Append to `requests`; on return it is accepted. A lost answer may append it twice."""
        ...

    async def control(self, control: Control) -> None: ...

    async def num_open(self) -> int:
        """Submissions that have not ended (XLEN of `requests`)."""
        ...

    def notices(self, gateway: GatewayId) -> AsyncIterator[Notice]:
        """Subscribe and read for ever. `Subscribed` comes first, and after every reconnection."""
        ...

    async def beat_gateway(self, gateway: GatewayId, beat: int) -> None: ...

    async def leave_gateway(self, gateway: GatewayId) -> None: ...

    async def secret(self, candidate: bytes) -> bytes:
        """The pool's, which all gateways share: `candidate`, if there was none before."""
        ...

    async def status(self) -> Status: ...

    async def workers(self) -> dict[WorkerId, WorkerHello]: ...

    async def owner(self, request: RequestId) -> WorkerId | None: ...

    async def read_log(self, worker: WorkerId, after: int) -> "Log":
        """The results of steps > `after`."""
        ...

    async def journal(self, request: RequestId) -> Journal: ...


# --- Worker -----------------------------------------------------------------------------------


class Commit(StrEnum):
    OK = "OK"
    DUPLICATE = "DUPLICATE"  # an earlier try landed
    CLOSED = "CLOSED"  # the log takes nothing more: drop all rows, start over under a new name


@dataclass(frozen=True, slots=True)
class Plans:
    plans: tuple[StepPlan, ...] = ()
    closed: bool = False  # the scheduler gave this worker up


class WorkerBus(Protocol):
    async def register(self, hello: WorkerHello) -> None:
        """Write the worker's field, then open its log while the field stands."""
        ...

    async def beat(self, hello: WorkerHello) -> bool:
        """Rewrite the field if it exists. False: it is gone, start over under a new name."""
        ...

    async def read_plans(self, worker: WorkerId, after: int, block_seconds: float) -> Plans:
        """Plans of steps > `after`, in order; waits until there are some, or the time is up."""
        ...

    async def commit(
        self, worker: WorkerId, result: StepResult, notices: Mapping[GatewayId, TokenBatch]
    ) -> Commit:
        """One write to the log, then the publishing. One outstanding at a time."""
        ...


@dataclass(frozen=True, slots=True)
class Lease:
    """Of who leads, or of a GPU."""

    holder: str = ""  # "": nobody
    epoch: int = 0
    beat: int = 0


class GpuBus(Protocol):
    """Leases of GPUs. A GPU is the same one for all hosts, containers and pools."""

    async def gpu_leases(self, gpus: Sequence[str]) -> list[Lease]: ...

    async def gpu_take(self, gpu: str, holder: str, seen: Lease) -> Lease | None:
        """The lease with the next epoch, if it still shows what was seen; else None."""
        ...

    async def gpu_renew(self, gpu: str, lease: Lease) -> Lease | None:
        """Beat + 1 if this holder and epoch still stand; else None."""
        ...

    async def gpu_leave(self, gpu: str, lease: Lease) -> None:
        """Nobody holds it any more, if this holder and epoch still stand."""
        ...


# --- Scheduler --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """A tenant's field in `shares`."""

    served: float = 0.0  # what it has had, divided by its weight
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Log:
    results: tuple[StepResult, ...] = ()
    closed: bool = False
    exists: bool = True


@dataclass(slots=True)
class Cursors:
    """How far a scheduler has read."""

    requests: EntryId = "0-0"
    control: EntryId = "0-0"
    logs: dict[WorkerId, int] = field(default_factory=dict)  # last step read, of logs that are open

    def advance(self, news: "News") -> None:
        """Behind all that `news` brought, garbage included; closed logs are read no more."""
        self.requests = news.requests_cursor or self.requests
        self.control = news.control_cursor or self.control
        for worker, results in news.results.items():
            self.logs[worker] = max(self.logs.get(worker, 0), results[-1].step)
        for stream, entry in news.garbage:
            if stream.startswith("results:"):
                worker = WorkerId(stream.removeprefix("results:"))
                step = int(entry.partition("-")[0])
                self.logs[worker] = max(self.logs.get(worker, 0), step)
        for worker in news.closed:
            self.logs.pop(worker, None)


@dataclass(frozen=True, slots=True)
class News:
    """What one blocking read brought; the reader moves its cursors itself (`advance`)."""

    submits: tuple[tuple[EntryId, Submit], ...] = ()
    controls: tuple[tuple[EntryId, Control], ...] = ()
    results: Mapping[WorkerId, tuple[StepResult, ...]] = field(default_factory=dict)
    closed: frozenset[WorkerId] = frozenset()
    garbage: tuple[tuple[str, EntryId], ...] = ()  # (stream, entry) that could not be understood
    requests_cursor: EntryId | None = None  # last entry seen, garbage included
    control_cursor: EntryId | None = None
    more_requests: bool = False  # entries of `requests` that this read left for the next


class Outcome(StrEnum):
    OK = "OK"
    FENCED = "FENCED"  # another scheduler leads: nothing was written, nothing will be
    REFUSED = "REFUSED"  # out of date (`set`), or another entry stands there


@dataclass(frozen=True, slots=True)
class WritePlan:
    worker: WorkerId
    plan: StepPlan


@dataclass(frozen=True, slots=True)
class WriteHead:
    """Entry `0-1` of the journal. REFUSED: the journal exists."""

    head: JournalHead


@dataclass(frozen=True, slots=True)
class WriteTokens:
    """Entry `<total>-0`: `tokens` are the last ones of `total`."""

    request_id: RequestId
    total: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WriteEnd:
    """Entry `<total>-2`, total = tokens in the journal, then `end` published to `gateways`."""

    total: int
    end: Ended
    gateways: tuple[GatewayId, ...]


@dataclass(frozen=True, slots=True)
class SetOwner:
    """REFUSED where the log is closed or missing, or the journal finished or missing."""

    request_id: RequestId
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class SetSuspect:
    request_id: RequestId
    deaths: int


@dataclass(frozen=True, slots=True)
class SetStatus:
    """A field of `status`; `value` is JSON."""

    field: str
    value: bytes


@dataclass(frozen=True, slots=True)
class SetShare:
    tenant: str
    share: Share


@dataclass(frozen=True, slots=True)
class AddTimeline:
    """An entry of `timeline` under `<epoch>-<index>`, bounded in number; `value` is JSON."""

    index: int
    value: bytes


@dataclass(frozen=True, slots=True)
class AddDead:
    """An entry of `dead` under `<epoch>-<index>`."""

    index: int
    value: bytes


@dataclass(frozen=True, slots=True)
class CloseLog:
    """The greatest id into the log, so that it takes nothing more."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class CloseSteps:
    """`closed` into `steps`, so that the worker hears of it. Right after `CloseLog`."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class DropOwner:
    request_id: RequestId


@dataclass(frozen=True, slots=True)
class DropSuspect:
    request_id: RequestId


@dataclass(frozen=True, slots=True)
class DropShare:
    tenant: str


@dataclass(frozen=True, slots=True)
class DropSubmit:
    """XDEL from `requests`."""

    entry: EntryId


@dataclass(frozen=True, slots=True)
class DropControl:
    entry: EntryId


@dataclass(frozen=True, slots=True)
class DropWorker:
    """Its field, so that it starts over if it lives."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class DropGateway:
    gateway: GatewayId


@dataclass(frozen=True, slots=True)
class TrimLog:
    """Forget results of steps < `before`."""

    worker: WorkerId
    before: int


@dataclass(frozen=True, slots=True)
class TrimSteps:
    worker: WorkerId
    before: int


@dataclass(frozen=True, slots=True)
class ExpireJournal:
    request_id: RequestId
    seconds: float


@dataclass(frozen=True, slots=True)
class ExpireWorker:
    """Its `steps` (`log=False`) or its log (`log=True`): one key a write."""

    worker: WorkerId
    seconds: float
    log: bool


Write = (
    WritePlan
    | WriteHead
    | WriteTokens
    | WriteEnd
    | SetOwner
    | SetSuspect
    | SetStatus
    | SetShare
    | AddTimeline
    | AddDead
    | CloseLog
    | CloseSteps
    | DropOwner
    | DropSuspect
    | DropShare
    | DropSubmit
    | DropControl
    | DropWorker
    | DropGateway
    | TrimLog
    | TrimSteps
    | ExpireJournal
    | ExpireWorker
)


class SchedulerBus(Protocol):
    async def lease(self) -> Lease: ...

    async def lease_take(self, holder: str, seen: Lease) -> Lease | None:
        """The lease with the next epoch, if it still shows what was seen; else None."""
        ...

    async def lease_renew(self, lease: Lease) -> Lease | None:
        """Beat + 1 if this holder and epoch still stand; else None."""
        ...

    async def lease_leave(self, lease: Lease) -> None:
        """Nobody holds it any more, if this holder and epoch still stand. The epoch stays."""
        ...

    async def write(self, epoch: int, writes: Sequence[Write]) -> list[Outcome]:
        """Each write is one function call with one write; all in one round trip, in order.

        A crash leaves a prefix of them. After a FENCED one, none that follow has any effect.
        """
        ...

    async def news(self, cursors: Cursors, block_seconds: float) -> News:
        """What came after the cursors; waits until there is some, or the time is up."""
        ...

    async def write_and_wait(
        self, epoch: int, writes: Sequence[Write], cursors: Cursors, block_seconds: float
    ) -> tuple[list[Outcome], News]:
        """`write`, then `news`, in one round trip: the outcomes are told with the news."""
        ...

    async def workers(self) -> dict[WorkerId, WorkerHello]: ...

    async def gateways(self) -> dict[GatewayId, int]:
        """Beats."""
        ...

    async def owners(self) -> dict[RequestId, WorkerId]: ...

    async def suspects(self) -> dict[RequestId, int]: ...

    async def shares(self) -> dict[str, Share]:
        """By tenant."""
        ...

    async def journals(self, requests: Sequence[RequestId]) -> list[Journal]: ...

    async def unexpired_journals(self) -> list[RequestId]:
        """Journals without a time to live: open requests, and ends that a crash cut short."""
        ...

    async def read_log(self, worker: WorkerId, after: int) -> Log: ...


# --- Whoever looks in -------------------------------------------------------------------------


class OperatorBus(Protocol):
    async def status_fields(self) -> dict[str, bytes]:
        """All of `status`, JSON by field."""
        ...

    async def recent(self, stream: str, num_entries: int) -> list[tuple[EntryId, Fields]]:
        """The last entries of `requests`, `timeline`, `results:<worker>` …; oldest first."""
        ...

    async def length(self, stream: str) -> int: ...

    async def lease(self) -> Lease: ...

    async def workers(self) -> dict[WorkerId, WorkerHello]: ...

    async def gateways(self) -> dict[GatewayId, int]: ...

    async def owners(self) -> dict[RequestId, WorkerId]: ...

    async def journal(self, request: RequestId) -> Journal: ...

    async def control(self, control: Control) -> None: ...
