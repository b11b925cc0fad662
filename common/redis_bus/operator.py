"""What a person looks at."""

from common.bus import EntryId, Fields
from common.redis_bus import wire
from common.redis_bus.reads import Reads


class OperatorSide(Reads):
    async def status_fields(self) -> dict[str, bytes]:
        fields = await self._hash(self._keys.status)
        return {field.decode(errors="replace"): value for field, value in fields.items()}

    async def recent(self, stream: str, num_entries: int) -> list[tuple[EntryId, Fields]]:
        """The last entries of `requests`, `timeline`, `results:<worker>` …; oldest first."""
        reply = await self._redis.call(
            "XREVRANGE", self._keys.of(stream), "+", "-", "COUNT", num_entries
        )
        return wire.entries(reply)[::-1]

    async def length(self, stream: str) -> int:
        return int(await self._redis.call("XLEN", self._keys.of(stream)))
