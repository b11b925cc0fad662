"""What `MemoryBus` keeps in place of Redis: streams, hashes and channels of one pool, in one loop.

Key names are those of Redis without their prefix. There is no clock: a key that was given a time
to live stands until `expire` is called.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from common.bus import EntryId, Fields
from common.codec import decode_notice
from common.entries import Entry
from common.messages import Ended, GatewayId, Notice, Subscribed, TokenBatch

NumericId = tuple[int, int]


def numeric(entry: EntryId) -> NumericId:
    first, _, second = entry.partition("-")
    return int(first), int(second or 0)


def printed(entry: NumericId) -> EntryId:
    return f"{entry[0]}-{entry[1]}"


@dataclass(slots=True)
class Stream:
    """Entries in order of id; the last id is remembered when its entry is gone, as in Redis."""

    ids: list[NumericId] = field(default_factory=list)
    fields: list[Fields] = field(default_factory=list)
    last: NumericId = (0, 0)

    def add(self, entry: EntryId, fields: Fields) -> bool:
        """False, and no change, if the id is not greater than the last one."""
        numeric_id = numeric(entry)
        if numeric_id <= self.last:
            return False
        self.ids.append(numeric_id)
        self.fields.append(fields)
        self.last = numeric_id
        return True

    def after(self, entry: EntryId) -> list[Entry]:
        start = bisect_right(self.ids, numeric(entry))
        return [
            (printed(numeric_id), fields)
            for numeric_id, fields in zip(self.ids[start:], self.fields[start:], strict=True)
        ]

    def get(self, entry: EntryId) -> Fields | None:
        numeric_id = numeric(entry)
        return self.fields[self.ids.index(numeric_id)] if numeric_id in self.ids else None

    def delete(self, entry: EntryId) -> None:
        numeric_id = numeric(entry)
        if numeric_id in self.ids:
            index = self.ids.index(numeric_id)
            del self.ids[index], self.fields[index]

    def trim(self, before: EntryId) -> None:
        """Forget entries whose id is smaller than `before`."""
        first, second = numeric(before)
        end = bisect_right(self.ids, (first, second - 1))
        del self.ids[:end], self.fields[:end]

    def keep(self, num_entries: int) -> None:
        del self.ids[:-num_entries], self.fields[:-num_entries]


class MemoryServer:
    """One for all `MemoryBus`es of a test. The attributes below `copies` are for tests to look at.

    `copies(gateway, notice)` says how often a published notice arrives: 0 loses it.
    """

    def __init__(self) -> None:
        self.copies: Callable[[GatewayId, TokenBatch | Ended], int] = lambda _gateway, _notice: 1
        self.streams: dict[str, Stream] = {}
        self.hashes: dict[str, dict[bytes, bytes]] = {}
        self.expiring: dict[str, float] = {}  # key -> its time to live, seconds
        self.full = False  # no memory left for new work
        self._clock = 0  # the server's, in ids
        # Each in order of arrival, so that a test that is repeated comes out the same.
        self._subscribers: dict[GatewayId, list[asyncio.Queue[Notice]]] = {}
        self._readers: dict[str, list[asyncio.Event]] = {}

    # Streams and hashes

    def stream(self, key: str) -> Stream:
        """As it stands; an empty one, kept nowhere, if the key is missing."""
        return self.streams.get(key, Stream())

    def add(self, key: str, entry: EntryId, fields: Fields) -> bool:
        added = self.streams.setdefault(key, Stream()).add(entry, fields)
        if added:
            self._wake(key)
        return added

    def add_next(self, key: str, fields: Fields) -> EntryId:
        """Under the server's next id: the order of ids is that of the entries of all streams."""
        self._clock = 1 + max(self._clock, self.stream(key).last[0])
        entry = printed((self._clock, 0))
        self.add(key, entry, fields)
        return entry

    def hash(self, key: str) -> dict[bytes, bytes]:
        return self.hashes.setdefault(key, {})

    def expire_in(self, key: str, seconds: float) -> None:
        if key in self.streams:
            self.expiring[key] = seconds

    def expire(self) -> None:
        """Time passes: every key with a time to live is gone."""
        for key in self.expiring:
            self.streams.pop(key, None)
        self.expiring.clear()

    def lasting_keys(self) -> set[str]:
        """Keys without a time to live that hold something."""
        hashes = {key for key, fields in self.hashes.items() if fields}
        return (set(self.streams) | hashes) - set(self.expiring)

    # Blocking reads

    async def wait(self, keys: Iterable[str], seconds: float) -> None:
        """Until something is added to one of the streams, or the time is up."""
        event = asyncio.Event()
        keys = list(keys)
        for key in keys:
            self._readers.setdefault(key, []).append(event)
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            for key in keys:
                self._readers[key].remove(event)

    def _wake(self, key: str) -> None:
        for event in self._readers.get(key, ()):
            event.set()

    # Channels

    def subscribe(self, gateway: GatewayId) -> asyncio.Queue[Notice]:
        queue: asyncio.Queue[Notice] = asyncio.Queue()
        self._subscribers.setdefault(gateway, []).append(queue)
        queue.put_nowait(Subscribed())
        return queue

    def unsubscribe(self, gateway: GatewayId, queue: asyncio.Queue[Notice]) -> None:
        self._subscribers[gateway].remove(queue)

    def publish(self, gateway: GatewayId, message: bytes) -> None:
        notice = decode_notice(message)
        for queue in self._subscribers.get(gateway, ()):
            for _ in range(self.copies(gateway, notice)):
                queue.put_nowait(notice)

    def resubscribe(self, gateway: GatewayId) -> None:
        """As after a lost connection: whatever was published meanwhile is missed."""
        for queue in self._subscribers.get(gateway, ()):
            queue.put_nowait(Subscribed())
