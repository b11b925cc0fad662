"""Processes die, stall and come back in random schedules: each answer is told right, and ends once.

`CHAIRLIFT_FAULT_SEEDS=300` runs so many schedules, `CHAIRLIFT_FAULT_SEEDS=17-17` one of them. Time
is virtual, so that one takes half a second, and fails again as it failed.
"""

import itertools
import os
import secrets
from collections.abc import Sequence
from typing import Any

import pytest

import gateway.routes
import gateway.token_router
import scheduler.ledger
import scheduler.logs
import scheduler.service
from common import entries
from common.messages import Ended, FinishReason, RequestId, choice_of
from common.redis_bus.keys import FIXED
from scheduler.core.invariants import check
from scheduler.service import Reign
from tests.system import virtual_time
from tests.system.fault_world import Wish, World

DEFAULT_SEEDS = "16"


def seeds() -> range:
    first, _, last = os.environ.get("CHAIRLIFT_FAULT_SEEDS", DEFAULT_SEEDS).rpartition("-")
    return range(int(first or 1), int(last) + 1)


class WatchedReign(Reign):
    """Looks at its cores after each turn; the one that began last is `last`."""

    last: "WatchedReign"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        WatchedReign.last = self

    async def _turn(self) -> None:
        await super()._turn()
        for worker in self.leader.fleet.workers.values():
            check(worker.core)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever waits for a while waits less, so that it happens between two faults."""
    monkeypatch.setattr(scheduler.ledger, "FLUSH_TOKENS", 16)
    monkeypatch.setattr(scheduler.ledger, "FLUSH_SECONDS", 0.2)
    monkeypatch.setattr(scheduler.logs, "TRIM_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(scheduler.logs, "TRIM_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(scheduler.service, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(gateway.routes, "SILENCE_SECONDS", 0.4)
    monkeypatch.setattr(gateway.token_router, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(scheduler.service, "Reign", WatchedReign)
    serial = itertools.count()
    monkeypatch.setattr(secrets, "token_hex", lambda _: f"{next(serial):03d}")


@pytest.mark.parametrize("seed", seeds())
def test_no_schedule_loses_anything(seed: int) -> None:
    async def play() -> None:
        world = World(seed)
        await world.run()
        for wish in world.wishes.values():
            for request in wish.submit.request_ids():
                check_request(world, wish, request)
        check_empty(WatchedReign.last)
        await world.end()
        assert world.server.lasting_keys() <= {*FIXED, "gateways"}

    virtual_time.run(play())


def check_request(world: World, wish: Wish, request: RequestId) -> None:
    """Its journal says what was committed and what the client was told, and goes away in time."""
    key = f"journal:{request}"
    if key not in world.server.streams:
        assert not wish.is_accepted, f"{request} was accepted and has no journal"
        return
    assert key in world.server.expiring, f"{key} stays for ever"
    journal = entries.read_journal(request, world.server.stream(key).after("0-0"))
    tokens, end, choice = journal.tokens, journal.end, choice_of(request)
    assert journal.head
    assert end, f"{request} never ended"
    assert dict(enumerate(tokens)) == world.server.committed.get(request, {})
    check_reason(world, wish, end, tokens)
    told = wish.told.get(choice, [])
    assert told == list(tokens[: len(told)])
    if choice in wish.ends:
        assert wish.ends[choice] == end
        assert len(told) == end.kept or wish.is_stopped(choice)


def check_reason(world: World, wish: Wish, end: Ended, tokens: Sequence[int]) -> None:
    """It ended by itself, or somebody asked for it."""
    assert end.kept <= len(tokens)
    if end.reason is wish.own_end(tokens) and end.kept == len(tokens):
        return
    match end.reason:
        case FinishReason.STOP:
            assert wish.is_stopped(choice_of(end.request_id))
            assert end.kept == min(wish.stop_kept, len(tokens))
        case FinishReason.DEADLINE:
            assert wish.submit.deadline_seconds is not None
        case FinishReason.CANCELLED:
            assert wish.has_left or world.was_abandoned(wish), "somebody waited for it"
        case FinishReason.ERROR:  # it happened to be there whenever a worker was lost
            assert world.num_losses > 2, end
            assert "workers that computed it" in end.error
        case FinishReason.LENGTH:
            pytest.fail(f"{end} of {len(tokens)} tokens")


def check_empty(reign: Reign) -> None:
    """The leader remembers nothing of any request, and every block is free."""
    leader = reign.leader
    remembered: list[Any] = [
        leader.ledger.accounts,
        leader.ledger.submissions,
        leader.ledger._unflushed,
        leader.controls._standing,
        leader.quarantine.line,
        leader.quarantine._held,
        leader.fleet.unassigned,
    ]
    assert not any(remembered), remembered
    for worker in leader.fleet.workers.values():
        assert worker.num_assigned == 0
        assert worker.core.pool.num_free == worker.core.pool.num_blocks
        assert not worker.core.requests
