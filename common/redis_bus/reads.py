"""What more than one role reads, and the lease that more than one role takes."""

from collections.abc import Sequence

from common import entries, hashes
from common.bus import Lease, Log
from common.entries import step_id
from common.messages import Journal, RequestId, WorkerHello, WorkerId
from common.redis_bus import wire
from common.redis_bus.keys import Keys
from common.redis_bus.repeater import Repeater


class Reads:
    _redis: Repeater
    _keys: Keys

    async def workers(self) -> dict[WorkerId, WorkerHello]:
        return hashes.read_workers(await self._hash(self._keys.workers))

    async def read_log(self, worker: WorkerId, after: int) -> Log:
        key = self._keys.results(worker)
        # In this order: a log that expires in between reads as one without news, not as gone.
        exists, reply = await self._redis.pipeline(
            [("EXISTS", key), ("XRANGE", key, step_id(after + 1), "+")]
        )
        if not exists:
            return Log(exists=False)
        return entries.read_log(self._keys.name_of(key), wire.entries(reply))

    async def journal(self, request: RequestId) -> Journal:
        [journal] = await self.journals([request])
        return journal

    async def journals(self, requests: Sequence[RequestId]) -> list[Journal]:
        if not requests:
            return []
        replies = await self._redis.pipeline(
            [("XRANGE", self._keys.journal(request), "-", "+") for request in requests]
        )
        return [
            entries.read_journal(request, wire.entries(reply))
            for request, reply in zip(requests, replies, strict=True)
        ]

    async def _take(self, key: bytes, holder: str, seen: Lease) -> Lease | None:
        args = (holder, seen.holder, seen.epoch, seen.beat)
        epoch = await self._redis.call(*wire.call("lease_take", (key,), *args))
        return None if epoch is None else Lease(holder, int(epoch), 0)

    async def _renew(self, key: bytes, lease: Lease) -> Lease | None:
        args = (lease.holder, lease.epoch)
        beat = await self._redis.call(*wire.call("lease_renew", (key,), *args))
        return None if beat is None else Lease(lease.holder, lease.epoch, int(beat))

    async def _leave(self, key: bytes, lease: Lease) -> None:
        args = (lease.holder, lease.epoch)
        await self._redis.call(*wire.call("lease_leave", (key,), *args))

    async def _hash(self, key: bytes) -> dict[bytes, bytes]:
        return wire.hash_fields(await self._redis.call("HGETALL", key))
