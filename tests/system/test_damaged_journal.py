"""A person writes into a journal: its request ends with an error, and everybody is told."""

import pytest

from common.messages import FinishReason, RequestId
from tests.conftest import MakeRedisBus
from tests.system.pool import Client, Pool, expected, until
from tests.valkey import ValkeyServer

PROMPT = (5, 6, 7)
BEHIND_ALL = "18446744073709551614-7"  # what stands behind this is no number of tokens


class Person:
    """With `redis-cli`."""

    def __init__(self, server: ValkeyServer, pool: str) -> None:
        self.server = server
        self.prefix = f"chairlift:{{{pool}}}:journal:"

    def writes(self, request: RequestId, entry: str) -> None:
        with self.server.client() as client:
            client.xadd(self.prefix + request, {"tokens": "garbage"}, id=entry)


@pytest.mark.parametrize("max_tokens", [20, 400])
@pytest.mark.parametrize("entry", ["*", BEHIND_ALL])
async def test_the_request_ends_with_an_error_and_the_log_names_it(
    valkey: ValkeyServer,
    pool: str,
    redis_bus: MakeRedisBus,
    capsys: pytest.CaptureFixture[str],
    max_tokens: int,
    entry: str,
) -> None:
    """Behind its entry nothing can be written as usual, neither tokens nor an end."""
    everybody = Pool(redis_bus)
    async with Client(redis_bus()).listening() as client:
        everybody.scheduler()
        damaged = await client.submit(PROMPT, max_tokens)
        other = await client.submit(PROMPT, max_tokens)

        async def has_head() -> bool:
            return (await client.bus.journal(damaged)).head is not None

        await until(has_head)
        Person(valkey, pool).writes(damaged, entry)
        worker = everybody.worker()
        await client.until(lambda: {damaged, other} <= set(client.ended))
        end, journal = client.ended[damaged], await client.bus.journal(damaged)
        assert (end.reason, end.error) == (FinishReason.ERROR, "its journal is damaged")
        assert (journal.tokens, journal.end) == ((), end)
        assert end.kept == 0
        assert any(
            "a journal is damaged" in line and damaged in line
            for line in capsys.readouterr().out.splitlines()
        )
        assert (await client.answer(other))[0] == expected(PROMPT, max_tokens)

        async def nobody_is_left() -> bool:
            return not (await client.bus.num_open() or await client.bus.workers())

        worker.leave()
        await until(nobody_is_left)
        await client.bus.leave_gateway(client.gateway)
        await everybody.stop()
