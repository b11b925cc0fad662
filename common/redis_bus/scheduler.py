"""A scheduler's side of the bus: the lease, fenced writes, and all that it reads."""

from collections.abc import Sequence
from dataclasses import replace

from common import bus, entries, hashes
from common.bus import Cursors, Lease, News, Outcome, Share
from common.entries import behind
from common.messages import GatewayId, RequestId, WorkerId
from common.redis_bus import wire
from common.redis_bus.reads import Reads
from common.redis_bus.writes import Writer

OUTCOMES = {outcome.value.encode(): outcome for outcome in Outcome}
PAGE = 64  # entries of one reply: a whole request may be half a megabyte


class SchedulerSide(Reads):
    _max_shown: int

    async def lease(self) -> Lease:
        return hashes.read_lease(await self._hash(self._keys.lease))

    async def lease_take(self, holder: str, seen: Lease) -> Lease | None:
        return await self._take(self._keys.lease, holder, seen)

    async def lease_renew(self, lease: Lease) -> Lease | None:
        return await self._renew(self._keys.lease, lease)

    async def lease_leave(self, lease: Lease) -> None:
        await self._leave(self._keys.lease, lease)

    async def write(self, epoch: int, writes: Sequence[bus.Write]) -> list[Outcome]:
        replies = await self._redis.pipeline(self._commands(epoch, writes))
        return [OUTCOMES[reply] for reply in replies]

    async def news(self, cursors: Cursors, block_seconds: float) -> News:
        _, news = await self.write_and_wait(0, (), cursors, block_seconds)
        return news

    async def write_and_wait(
        self, epoch: int, writes: Sequence[bus.Write], cursors: Cursors, block_seconds: float
    ) -> tuple[list[Outcome], News]:
        after = {self._keys.requests: cursors.requests, self._keys.control: cursors.control}
        for worker, step in cursors.logs.items():
            after[self._keys.results(worker)] = behind(step)
        command = ("XREAD", "COUNT", PAGE)
        replies, reply = await self._redis.pipeline_and_read(
            self._commands(epoch, writes), command, block_seconds, *after, *after.values()
        )
        found = wire.streams(reply)
        is_full = len(found.get(self._keys.requests, ())) == PAGE
        news = entries.read_news({self._keys.name_of(key): found[key] for key in found})
        return [OUTCOMES[each] for each in replies], replace(news, more_requests=is_full)

    def _commands(self, epoch: int, writes: Sequence[bus.Write]) -> list[wire.Command]:
        writer = Writer(self._keys, epoch, self._max_shown)
        return [writer.command(write) for write in writes]

    async def gateways(self) -> dict[GatewayId, int]:
        return hashes.read_gateways(await self._hash(self._keys.gateways))

    async def owners(self) -> dict[RequestId, WorkerId]:
        return hashes.read_owners(await self._hash(self._keys.owners))

    async def suspects(self) -> dict[RequestId, int]:
        return hashes.read_suspects(await self._hash(self._keys.suspects))

    async def shares(self) -> dict[str, Share]:
        return hashes.read_shares(await self._hash(self._keys.shares))

    async def unexpired_journals(self) -> list[RequestId]:
        found: dict[bytes, None] = {}  # SCAN may give a key twice
        cursor = b"0"
        while True:
            cursor, keys = await self._redis.call(
                "SCAN", cursor, "MATCH", self._keys.journal_pattern(), "COUNT", 1000
            )
            ttls = await self._redis.pipeline([("TTL", key) for key in keys])
            found |= {key: None for key, ttl in zip(keys, ttls, strict=True) if ttl == -1}
            if cursor == b"0":
                return [self._keys.request_of(key) for key in found]
