"""Every safeguard of the protocol, taken out: some schedule, or some other test, must notice.

A safeguard is taken out by a patch of the product, or of the model of Redis where it is a function
of ours. `SAFEGUARDS` are those that the simulation misses; docs/reliability.md lists the others.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import gateway.answer
import gateway.routes
import gpu_worker.service
import scheduler.core.members
import scheduler.intake
import scheduler.leader
import scheduler.ledger
import scheduler.placement
import scheduler.recovery
import scheduler.service
from common import bus, codec, entries, memory_writes
from common.bus import Commit, Log, Outcome
from common.entries import MAX_ID, log_of
from common.memory_bus import MemoryBus
from common.messages import GatewayId, StepResult, TokenBatch, WorkerId
from scheduler.core.request import Request, Status
from scheduler.ledger import Account, Ledger
from tests.system.faulty_server import FaultyServer, Note

Patch = Callable[[], AbstractContextManager[Any]]


# --- The server, the lease, and what it fences -------------------------------------------------


@contextlib.contextmanager
def synced_now_and_then() -> Iterator[None]:
    """`appendfsync everysec` behind the back of those who rely on `always`."""
    make = FaultyServer.__init__

    def careless(self: FaultyServer, rng: random.Random, *, is_always: bool, note: Note) -> None:
        make(self, rng, is_always=False, note=note)

    with (
        mock.patch.object(FaultyServer, "__init__", careless),
        mock.patch.object(FaultyServer, "note_loss"),
    ):
        yield


def unfenced(*kinds: type) -> Patch:
    """These writes do not compare the epoch."""
    fenced = MemoryBus.write

    async def write(self: MemoryBus, epoch: int, writes: Sequence[bus.Write]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for each in writes:
            current = self._lease("lease").epoch if isinstance(each, kinds) else epoch
            outcomes += await fenced(self, current, [each])
        return outcomes

    return lambda: mock.patch.object(MemoryBus, "write", write)


DROPS = (
    *(bus.DropOwner, bus.DropSuspect, bus.DropShare, bus.DropSubmit, bus.DropControl),
    *(bus.DropWorker, bus.DropGateway, bus.TrimLog, bus.TrimSteps),
    *(bus.ExpireJournal, bus.ExpireWorker),
)


# --- Logs ---------------------------------------------------------------------------------------


def _only_steps(worker: WorkerId) -> list[bus.Write]:
    return [bus.CloseSteps(worker)]


@contextlib.contextmanager
def only_steps_are_closed() -> Iterator[None]:
    with (
        mock.patch.object(scheduler.service, "closing", _only_steps),
        mock.patch.object(scheduler.recovery, "closing", _only_steps),
    ):
        yield


def takeover_closes_nothing() -> AbstractContextManager[Any]:
    return mock.patch.object(scheduler.recovery, "closing", return_value=[])


def closed_logs_take_more() -> AbstractContextManager[Any]:
    """`commit` does not mind what closed the log."""
    commit = MemoryBus.commit

    async def reckless(
        self: MemoryBus,
        worker: WorkerId,
        result: StepResult,
        notices: Mapping[GatewayId, TokenBatch],
    ) -> Commit:
        stream = self.server.stream(log_of(worker))
        if stream.get(MAX_ID) is None:
            return await commit(self, worker, result, notices)
        self.server.books.note(log_of(worker), entries.result_fields(result))  # type: ignore[attr-defined]
        for gateway_id, batch in notices.items():
            self.server.publish(gateway_id, codec.encode_token_batch(batch))
        return Commit.OK

    return mock.patch.object(MemoryBus, "commit", reckless)


def closed_logs_are_not_read() -> AbstractContextManager[Any]:
    async def lose(self: Any, worker_id: WorkerId, why: str, now: float) -> None:
        worker = self.leader.fleet.workers[worker_id]
        await self.writer.write(scheduler.service.closing(worker_id))
        died = bool(worker.hello.failed) or not worker.hello.leaving
        await self.writer.write(self.leader.bury(worker_id, Log(closed=True), died, now))

    return mock.patch.object(scheduler.service.Reign, "_lose", lose)


def commits_overtake_each_other() -> AbstractContextManager[Any]:
    """The next commit is sent before the last one is answered."""

    async def commit_all(self: Any) -> None:
        async def commit(result: StepResult, batches: Mapping[GatewayId, TokenBatch]) -> None:
            if await self.bus.commit(self.name, result, batches) is Commit.CLOSED:
                raise gpu_worker.service.GivenUpError("its log is closed")

        async with asyncio.TaskGroup() as tasks:
            while True:
                plan, outcome = await self.results.get()
                if isinstance(outcome, Exception):
                    self._fail(plan, outcome)
                    continue
                self.viewers.follow(plan)
                tasks.create_task(commit(outcome, self.viewers.batches(outcome.sampled)))

    return mock.patch.object(gpu_worker.service._Life, "_commit", commit_all)


def published_before_written() -> AbstractContextManager[Any]:
    commit = MemoryBus.commit

    async def hasty(
        self: MemoryBus,
        worker: WorkerId,
        result: StepResult,
        notices: Mapping[GatewayId, TokenBatch],
    ) -> Commit:
        for gateway_id, batch in notices.items():
            self.server.publish(gateway_id, codec.encode_token_batch(batch))
        return await commit(self, worker, result, {})

    return mock.patch.object(MemoryBus, "commit", hasty)


# --- Journals, owners, ends ---------------------------------------------------------------------


def moved_without_a_flush() -> AbstractContextManager[Any]:
    flush = Ledger.flush

    def lazy(self: Ledger, account: Account) -> list[bus.Write]:
        return [] if account.worker is None else flush(self, account)

    return mock.patch.object(Ledger, "flush", lazy)


def trimmed_before_journaled() -> AbstractContextManager[Any]:
    return mock.patch.object(Ledger, "first_unjournaled", return_value=None)


def end_in_order(pick: Callable[[list[bus.Write]], list[bus.Write]]) -> Patch:
    """The writes of an end, in another order."""
    end = Ledger.end
    return lambda: mock.patch.object(Ledger, "end", lambda self, account: pick(end(self, account)))


def first(kind: type) -> Callable[[list[bus.Write]], list[bus.Write]]:
    return lambda writes: sorted(writes, key=lambda write: not isinstance(write, kind))


def end_without_its_tokens(writes: list[bus.Write]) -> list[bus.Write]:
    return [write for write in writes if not isinstance(write, bus.WriteTokens)]


def ends_in_flight() -> AbstractContextManager[Any]:
    """An end is written while steps may still bring tokens of it."""

    def hand_over(self: Any, request: Request) -> None:
        is_over = request.status is Status.FINISHED and request.id in self.requests
        if is_over and request not in self._ended:
            self._ended.append(request)

    return mock.patch.object(scheduler.core.members.Members, "_hand_over", hand_over)


def owners_written_last() -> AbstractContextManager[Any]:
    """A plan is there before the owner is."""
    act = scheduler.leader.Leader.act

    def late(self: Any, now: float) -> list[bus.Write]:
        return sorted(act(self, now), key=lambda write: isinstance(write, bus.SetOwner))

    return mock.patch.object(scheduler.leader.Leader, "act", late)


def owners_of_anything() -> AbstractContextManager[Any]:
    """`set_owner` looks neither at the log nor at the journal."""

    def set_owner(server: Any, _epoch: int, write: bus.SetOwner) -> bool:
        server.hash("owners")[write.request_id.encode()] = write.worker.encode()
        return True

    return mock.patch.dict(memory_writes.WRITERS, {bus.SetOwner: set_owner})


def owners_are_not_followed() -> AbstractContextManager[Any]:
    """A takeover reads journals, and no log."""
    return mock.patch.object(scheduler.recovery, "_tokens", return_value={})


def beginnings_are_not_completed() -> AbstractContextManager[Any]:
    return mock.patch.object(scheduler.recovery, "_tidy", return_value=[])


# --- Known ids ----------------------------------------------------------------------------------


def copies_are_taken() -> AbstractContextManager[Any]:
    """A second entry of a request that has ended or runs is a new request."""

    def joined(self: Any, outcomes: Sequence[Outcome]) -> tuple[list[Any], list[bus.Write]]:
        opened, self._joining = self._joining, []
        return opened, []

    return mock.patch.object(scheduler.intake.Intake, "joined", joined)


def copies_stay() -> AbstractContextManager[Any]:
    """A second entry of a known request is passed over, and not deleted."""
    queue = scheduler.intake.Intake.queue

    def forgetful(self: Any, submits: Sequence[Any]) -> list[bus.Write]:
        queue(self, submits)
        return []

    return mock.patch.object(scheduler.intake.Intake, "queue", forgetful)


# --- Gateways -----------------------------------------------------------------------------------


def any_position_is_shown() -> AbstractContextManager[Any]:
    def add(self: Any, position: int, token: int) -> None:
        if position >= self.num_known and not self.is_complete and not self.is_stopped:
            self._ready.append(token)
            self.num_known += 1
            self._settle()

    return mock.patch.object(gateway.answer.Choice, "add", add)


def known_positions_are_shown() -> AbstractContextManager[Any]:
    add = gateway.answer.Choice.add

    def forgetful(self: Any, position: int, token: int) -> None:
        add(self, max(position, self.num_known) if position < self.num_known else position, token)

    return mock.patch.object(gateway.answer.Choice, "add", forgetful)


def ends_are_believed_early() -> AbstractContextManager[Any]:
    """An end ends the answer, whatever is missing before it."""
    return mock.patch.object(
        gateway.answer.Choice, "is_complete", property(lambda self: self.end is not None)
    )


def nothing_is_repaired() -> AbstractContextManager[Any]:
    return mock.patch.object(gateway.routes.RepairQueue, "want")


# --- Workers that die ---------------------------------------------------------------------------


def nobody_is_suspect() -> AbstractContextManager[Any]:
    """A request that kills workers goes to the next one."""
    return mock.patch.object(scheduler.placement, "is_suspect", return_value=False)


# --- All of them --------------------------------------------------------------------------------

SAFEGUARDS: dict[str, Patch] = {
    "the server syncs before it answers": synced_now_and_then,
    "plan compares the epoch": unfenced(bus.WritePlan),
    "drop compares the epoch": unfenced(*DROPS),
    "every write compares the epoch": unfenced(object),
    "a lost worker's log is closed": only_steps_are_closed,
    "a takeover closes all logs": takeover_closes_nothing,
    "nothing is committed to a closed log": closed_logs_take_more,
    "a closed log is read to its end": closed_logs_are_not_read,
    "one commit is outstanding": commits_overtake_each_other,
    "a commit is written before it is published": published_before_written,
    "journals catch up before the owner changes": moved_without_a_flush,
    "only what is in journals is trimmed": trimmed_before_journaled,
    "an end has all its tokens before it": end_in_order(end_without_its_tokens),
    "the entry is deleted after the end": end_in_order(first(bus.DropSubmit)),
    "an end waits for the steps in flight": ends_in_flight,
    "the owner is set before the plan": owners_written_last,
    "no owner with a closed log or an ended journal": owners_of_anything,
    "a takeover reads the owners' logs": owners_are_not_followed,
    "ends that were begun are completed": beginnings_are_not_completed,
    "a head that is there tells a copy": copies_are_taken,
    "copies are deleted": copies_stay,
    "only the next position is shown": any_position_is_shown,
    "known positions are dropped": known_positions_are_shown,
    "an end beyond what is shown is a jump": ends_are_believed_early,
    "what was missed is repaired": nothing_is_repaired,
    "what kills workers runs alone": nobody_is_suspect,
}
