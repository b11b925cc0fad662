"""What must be true at the end of a schedule, whatever went wrong in it."""

from collections.abc import Sequence
from typing import Any

from common.messages import Ended, FinishReason, choice_of, request_id
from common.redis_bus.keys import FIXED
from gateway.failures import FAILURES
from scheduler.core.invariants import check
from scheduler.service import Reign
from tests.system.fault_clients import Client
from tests.system.fault_world import FEW_OPEN, MAX_LENGTH, World
from tests.system.truthful import full_answer

LOOKS = 16  # turns of a leader between two looks at its cores


class WatchedReign(Reign):
    """Looks at its cores now and then; the one that began last is `last`."""

    last: "WatchedReign"
    num_lost = 0  # workers that were given up, by all leaders of a schedule

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        WatchedReign.last = self
        self._turns = 0

    async def _turn(self) -> None:
        await super()._turn()
        self._turns += 1
        if self._turns % LOOKS == 0:
            self.check()

    async def _lose(self, *args: Any) -> None:
        WatchedReign.num_lost += 1
        await super()._lose(*args)

    def check(self) -> None:
        for worker in self.leader.fleet.workers.values():
            check(worker.core)


def check_clients(world: World) -> None:
    """Each accepted request ended once, and its client was told so, unless it had left."""
    for client in world.clients:
        for choice in range(client.submit.num_choices):
            _check_choice(world, client, choice)


def _check_choice(world: World, client: Client, choice: int) -> None:
    submit, seen, books = client.submit, client.seen[choice], world.server.books
    request = request_id(submit.submission_id, choice)
    end = books.ended.get(request)
    if end is None:
        assert submit.submission_id not in books.submits, f"{request} never ended"
        assert client.error or client.was_gone, f"{request} never came, and nobody was told"
        return
    tokens = books.committed.get(request, {})
    full, own_reason = full_answer(submit, choice)
    assert [*tokens.values()] == full[: len(tokens)], f"{request} is not what it should be"
    assert end.kept <= len(tokens)
    if end.reason is not own_reason or end.kept != len(full):
        _check_reason(world, client, end, len(tokens))
    if client.error or (client.was_gone and not client.is_over):
        return
    assert client.is_over, f"{request}: its client still waits"
    finish = _stop_or(client, choice, end.reason)
    assert finish not in FAILURES, f"{request}: {end}, and its client was told of no failure"
    assert seen.text == client.expected[choice], f"{request}: {seen} is not all"
    assert seen.finish == finish


def _stop_or(client: Client, choice: int, reason: FinishReason) -> str:
    """A stop string wins over how the scheduler says that it ended."""
    full, _ = full_answer(client.submit, choice)
    shown = [token for token in full if token not in client.submit.ending.end_tokens]
    is_cut = 3 * len(shown) > len(client.expected[choice])
    return FinishReason.STOP if is_cut else reason


def _check_reason(world: World, client: Client, end: Ended, num_tokens: int) -> None:
    """Somebody asked for it, or it could not be helped."""
    choice = choice_of(end.request_id)
    match end.reason:
        case FinishReason.STOP:  # the gateway found a stop string
            assert client.stops, end
            stop = len(client.expected[choice]) // 3 + 1
            assert end.kept == min(stop, num_tokens), end
        case FinishReason.DEADLINE:
            assert client.submit.deadline_seconds is not None
        case FinishReason.CANCELLED:
            is_wanted = not (client.was_gone or client.was_cancelled or client.error)
            assert not is_wanted or _was_abandoned(world, client), end
        case FinishReason.ERROR:  # it happened to be there whenever a worker was lost
            assert WatchedReign.num_lost > 2, end
            assert "workers that computed it" in end.error
        case FinishReason.REFUSED:
            prompt = client.submit.prompts[choice // client.submit.n]
            length = len(prompt) + client.submit.ending.max_tokens
            assert (world.small_cache, num_tokens) == (True, 0), end
            assert length > MAX_LENGTH, end
        case FinishReason.OVERLOADED:
            assert (world.settings.max_open, num_tokens) == (FEW_OPEN, 0), end
        case _:
            raise AssertionError(f"{end} of {num_tokens} tokens")


def _was_abandoned(world: World, client: Client) -> bool:
    """A leader may have thought that nobody comes back for it."""
    return any(gateway.was_away for gateway in world.gateways if client in gateway.clients)


def check_leader(world: World) -> None:
    """The leader remembers nothing of any request, and every block is free."""
    reign = WatchedReign.last
    reign.check()
    leader = reign.leader
    remembered: Sequence[Any] = [
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


def check_server(world: World) -> None:
    """Nothing is left that should have gone."""
    server = world.server
    assert not server.expiring, server.expiring
    assert server.lasting_keys() <= set(FIXED), server.lasting_keys() - set(FIXED)
