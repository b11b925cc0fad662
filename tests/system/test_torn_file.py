"""An append-only file that ends at any byte: what was acknowledged before is there, and stays.

A power cut leaves a file that ends anywhere. A server is started on what is left of one, written
to, killed and started once more. On servers that need it the bus has the file rewritten first.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from common.bus import (
    Commit,
    Cursors,
    ExpireJournal,
    Outcome,
    SetOwner,
    Write,
    WriteEnd,
    WriteHead,
    WritePlan,
    WriteTokens,
)
from common.messages import Control, ControlKind, Journal, RequestId
from common.redis_bus import RedisBus
from tests.common.conftest import lead
from tests.common.examples import GATEWAY, WORKER, batch, end, head, hello, plan, result, submit
from tests.valkey import ValkeyServer

TAIL_BYTES = 4096
POOL = "own"
STRANGERS = ("chairlift:gpu:a", "chairlift:gpu:b")  # keys that others write, in one transaction
NUM_ROUNDS = 4
REQUESTS = tuple(RequestId(f"r{number}.0") for number in range(NUM_ROUNDS + 1))
AGAIN = RequestId("again.0")

State = dict[str, Any]


@dataclass(frozen=True)
class Written:
    """A server's file, and what was to be read when it was so long, from 0 bytes on."""

    server: ValkeyServer
    states: tuple[tuple[int, State], ...]

    def state(self, size: int) -> State:
        return next(state for length, state in reversed(self.states) if length <= size)


class Author:
    """Writes as the services do, and keeps what stands after each answer."""

    def __init__(self, server: ValkeyServer, bus: RedisBus) -> None:
        self.server, self.bus = server, bus
        self.states: list[tuple[int, State]] = []
        self.epoch = 0

    async def note(self, **changes: Any) -> None:
        size = self.server.append_only_file.stat().st_size
        self.states.append((size, await look(self.bus) | changes))

    async def write(self, *writes: Write) -> None:
        for write in writes:
            assert await self.bus.write(self.epoch, [write]) == [Outcome.OK]
            await self.note()

    async def begin(self) -> None:
        self.epoch = await lead(self.bus)
        await self.bus.register(hello())
        await self.note()

    async def round(self, number: int) -> None:
        """A request from its submission to its end."""
        request, step = REQUESTS[number], number + 1
        await self.bus.submit(submit(f"r{number}"))
        await self.note()
        await self.write(WriteHead(head(request)), SetOwner(request, WORKER))
        await self.write(WritePlan(WORKER, plan(step, request)))
        done = result(step, request)
        assert await self.bus.commit(WORKER, done, batch(done)) is Commit.OK
        await self.note()
        await self.write(WriteTokens(request, 1, (11,)), WriteEnd(1, end(1, request), (GATEWAY,)))
        await self.bus.control(Control(ControlKind.HOLD, request))
        await self.note()

    async def transaction(self) -> None:
        """Somebody else's: the only thing of more than one write."""
        with self.server.client() as direct:
            pipeline = direct.pipeline(transaction=True)
            for key in STRANGERS:
                pipeline.hset(key, mapping={"holder": "w", "epoch": 1, "beat": len(self.states)})
            pipeline.execute()
        await self.note()

    async def come_again(self) -> None:
        """A request whose former journal has expired: the write of the new head removes it."""
        await self.write(WriteHead(head(AGAIN)))
        expires = [ExpireJournal(AGAIN, 0.001)]
        assert await self.bus.write(self.epoch, expires) == [Outcome.OK]
        await asyncio.sleep(0.01)
        size = self.server.append_only_file.stat().st_size
        self.states.append((size, self.states[-1][1] | {AGAIN: Journal(None, (), None)}))
        await self.write(WriteHead(head(AGAIN, entry="2-0")))


async def look(bus: RedisBus) -> State:
    """All that our functions say of the pool."""
    news = await bus.news(Cursors(), 0)
    journals = await bus.journals([*REQUESTS, AGAIN])
    return {
        "lease": await bus.lease(),
        "submits": [submit for _, submit in news.submits],
        "controls": [control for _, control in news.controls],
        "workers": await bus.workers(),
        "owners": await bus.owners(),
        "plans": await bus.read_plans(WORKER, 0, 0.0),
        "log": await bus.read_log(WORKER, 0),
        "strangers": await bus.gpu_leases(["a", "b"]),
        **dict(zip([*REQUESTS, AGAIN], journals, strict=True)),
    }


@pytest.fixture
async def written() -> AsyncIterator[Written]:
    # A key that has expired is removed by whoever meets it, and by nobody else.
    server = ValkeyServer("--enable-debug-command", "yes")
    bus = RedisBus(server.start().url, POOL)
    try:
        with server.client() as direct:
            direct.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
        await bus.connect()
        author = Author(server, bus)
        await author.begin()
        for number in range(NUM_ROUNDS):
            await author.round(number)
            await (author.come_again() if number == NUM_ROUNDS - 2 else author.transaction())
        yield Written(server, tuple(author.states))
    finally:
        await bus.aclose()
        server.close()


async def test_any_kind_of_cut_leaves_a_prefix_and_a_server_that_keeps_what_follows(
    written: Written,
) -> None:
    await survive(written, sample(written))


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_every_cut_leaves_a_prefix_and_a_server_that_keeps_what_follows(
    written: Written,
) -> None:
    size = written.server.append_only_file.stat().st_size
    await survive(written, range(size - TAIL_BYTES, size + 1))


async def survive(written: Written, cuts: "range | list[int]") -> None:
    for size in cuts:
        server = written.server.torn(size)
        try:
            server.start()
            expected = written.state(size)
            after = await go_on(server, expected, size)
            server.kill()
            server.start()
            bus = RedisBus(server.url, POOL)
            assert await look(bus) == after, size
            await bus.aclose()
            server.kill()  # an orderly end takes longer
        finally:
            server.close()


async def go_on(server: ValkeyServer, expected: State, size: int) -> State:
    """What stands after some more was written."""
    bus = RedisBus(server.url, POOL)
    assert await look(bus) == expected, size
    author = Author(server, bus)
    author.epoch = expected["lease"].epoch
    [request] = REQUESTS[NUM_ROUNDS:]
    await bus.submit(submit(f"r{NUM_ROUNDS}"))
    step = NUM_ROUNDS + 1
    writes: list[Write] = [WriteHead(head(request)), WritePlan(WORKER, plan(step, request))]
    assert await bus.write(author.epoch, writes) == [Outcome.OK] * 2
    assert await bus.commit(WORKER, result(step, request), {}) is Commit.OK
    after = await look(bus)
    await bus.aclose()
    assert after["submits"] == [*expected["submits"], submit(f"r{NUM_ROUNDS}")]
    assert after["log"].results == (*expected["log"].results, result(step, request))
    assert after[request].head is not None
    return after


@dataclass(frozen=True)
class Record:
    """One command of an append-only file, and where its parts begin."""

    name: str
    start: int
    first_data: int
    last_data: int
    stop: int

    def places(self) -> list[int]:
        """Where a cut may fall: between commands, in each kind of line, in its end."""
        return [
            self.start,
            self.start + 1,  # in the number of words
            self.start + 3,  # before the end of a line
            self.first_data - 3,  # in the length of a word
            self.first_data + 1,  # in the first word
            self.last_data,  # before the last one
            (self.last_data + self.stop) // 2,
            self.stop - 2,
            self.stop - 1,  # within the end of the last line
        ]


def records(data: bytes) -> Iterator[Record]:
    position = 0

    def line() -> int:
        nonlocal position
        begin, position = position, data.index(b"\r\n", position) + 2
        return int(data[begin + 1 : position - 2])

    while position < len(data):
        start, words = position, []
        for _ in range(line()):
            length = line()
            words.append(position)
            position += length + 2
        name = data[words[0] : data.index(b"\r", words[0])].decode().upper()
        yield Record(name, start, words[0], words[-1], position)


def sample(written: Written) -> list[int]:
    """Of the tail: each kind of place in a command and in a transaction; one in each command."""
    data = written.server.append_only_file.read_bytes()
    tail = [record for record in records(data) if record.start >= len(data) - TAIL_BYTES]
    names = [record.name for record in tail]
    assert names.count("MULTI") == 2  # of a head, and of somebody else
    assert {"XADD", "HSET", "PEXPIREAT"} < set(names)
    alone = tail[names.index("XADD")]
    inside = tail[-2]
    assert names[-4:] == ["MULTI", "HSET", "HSET", "EXEC"]
    cuts = {*alone.places(), *inside.places(), len(data)}
    for number, record in enumerate(tail):
        places = record.places()
        cuts.add(places[number % len(places)])
    return sorted(cuts)
