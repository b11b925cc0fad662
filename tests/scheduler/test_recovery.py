"""A takeover goes on with whatever the last leader left, damaged or cut off."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from common.bus import Cursors, Lease, SetOwner, Write, WriteEnd, WriteHead, WriteTokens
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer, numeric, printed
from common.messages import (
    Ended,
    Ending,
    FinishReason,
    GatewayId,
    RequestId,
    Sampled,
    Sampling,
    StepResult,
    SubmissionId,
    Submit,
    WorkerHello,
    WorkerId,
)
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.fleet import Fleet
from scheduler.intake import head_of
from scheduler.leader import Leader
from scheduler.ledger import Ledger
from scheduler.recovery import recover
from scheduler.writer import Writer

WORKER = WorkerId("w")
HELLO = WorkerHello(WORKER, "m", "cpu", 64, 16, 512, 128, 8)


def build_core(hello: WorkerHello) -> Scheduler:
    limits = Limits(hello.max_step_tokens, hello.max_rows, 1, hello.max_request_tokens)
    return Scheduler(limits, Memory(hello.num_blocks, hello.block_size))


def submit(name: str, n: int = 1) -> Submit:
    return Submit(SubmissionId(name), ((1, 2, 3),), n, Sampling(seed=1), Ending(9), GatewayId("g"))


class Pool:
    """What a leader that is gone left with one worker, and the leader that comes next."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.bus = MemoryBus(self.server)
        self.lease = Lease()

    async def take(self) -> Leader:
        """A takeover, up to the moment when workers join anew."""
        await self._win()
        fleet = Fleet(build_core, beat_seconds=2.0, step_seconds=10.0)
        leader = Leader(fleet, Ledger(journal_seconds=60), max_queue=100)
        await recover(self.bus, Writer(self.bus, self.lease.epoch), leader, Cursors())
        return leader

    async def submitted(self, *submits: Submit) -> None:
        """A first leader read them and gave them to the worker."""
        await self._win()
        await self.bus.register(HELLO)
        for one in submits:
            await self.bus.submit(one)
            entry = printed(self.server.stream("requests").last)
            await self.write(
                *(WriteHead(head_of(entry, one, choice)) for choice in range(one.num_choices)),
                *(SetOwner(request, WORKER) for request in one.request_ids()),
            )

    async def write(self, *writes: Write) -> None:
        await self.bus.write(self.lease.epoch, writes)

    async def commit(
        self, step: int, requests: Sequence[str], errors: Mapping[RequestId, str]
    ) -> None:
        """The worker's step: a token for each of the requests, which have `step - 1` already."""
        sampled = [Sampled(RequestId(request), step - 1, 49 + step) for request in requests]
        await self.bus.commit(WORKER, StepResult(step, tuple(sampled), 0.0, errors), {})

    async def _win(self) -> None:
        lease = await self.bus.lease_take("s", self.lease)
        assert lease is not None
        self.lease = lease

    def damage(self, request: str, entry: str) -> None:
        stream = self.server.stream(f"journal:{request}")
        stream.fields[stream.ids.index(numeric(entry))] = {b"head": b"{nonsense"}


@pytest.fixture
def pool() -> Pool:
    return Pool()


def known(leader: Leader, request: str) -> Sequence[int]:
    return leader.ledger.accounts[RequestId(request)].request.tokens


async def test_a_head_that_cannot_be_read_stops_no_takeover(pool: Pool) -> None:
    """The entry says all that the head said, so the request goes on, like all others."""
    await pool.submitted(submit("a", n=2), submit("b"))
    await pool.write(WriteTokens(RequestId("a.1"), 2, (7, 8)))
    pool.damage("a.1", "0-1")
    leader = await pool.take()
    assert list(leader.ledger.submissions) == ["a", "b"]
    assert known(leader, "a.1") == [1, 2, 3, 7, 8]
    assert list(leader.fleet.unassigned) == ["a.0", "a.1", "b.0"]
    await pool.take()  # and again


async def test_a_row_that_ended_with_an_error_is_not_computed_again(pool: Pool) -> None:
    """The leader died before it read the log; another choice had ended with an error before."""
    await pool.submitted(submit("a", n=3))
    before = Ended(RequestId("a.2"), 0, FinishReason.ERROR, "earlier")
    await pool.write(WriteEnd(0, before, ()))
    await pool.commit(1, ("a.0", "a.1"), {RequestId("a.2"): "earlier"})
    await pool.commit(2, ("a.1",), {RequestId("a.0"): "not finite"})
    leader = await pool.take()
    assert list(leader.fleet.unassigned) == ["a.1"]
    journal = await pool.bus.journal(RequestId("a.0"))
    assert journal.tokens == (50,)
    assert journal.end == Ended(RequestId("a.0"), 1, FinishReason.ERROR, "not finite")
    assert (await pool.bus.journal(RequestId("a.2"))).end == before
    assert RequestId("a.0") not in await pool.bus.owners()


async def test_an_error_in_a_log_of_the_past_is_none(pool: Pool) -> None:
    """The request went on elsewhere: the log that has its newest tokens says how it stands."""
    await pool.submitted(submit("a"))
    other = replace(HELLO, worker_id=WorkerId("v"))
    await pool.bus.register(other)
    await pool.commit(1, (), {RequestId("a.0"): "not finite"})
    await pool.write(SetOwner(RequestId("a.0"), other.worker_id))
    assert list((await pool.take()).fleet.unassigned) == ["a.0"]


async def test_a_damaged_journal_that_nobody_needs_expires(pool: Pool) -> None:
    """Its entry is gone: the crash came between that and the journal's time to live."""
    await pool.submitted(submit("a"))
    requests = pool.server.stream("requests")
    requests.delete(printed(requests.last))
    pool.damage("a.0", "0-1")
    await pool.take()
    assert pool.server.expiring["journal:a.0"] == 60
