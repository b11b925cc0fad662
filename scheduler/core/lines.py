"""Orders of the waiting line: by place, or by the tenant that has had the least service.

Adding and taking cost O(log n), leaving O(1): a heap keeps an entry that left until it comes to
the top, or until half of the heap is such entries.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import Protocol

from common.messages import RequestId
from scheduler.core.request import Place, Request
from scheduler.core.shares import Shares

_Entry = tuple[Place, int, Request]  # key, ticket, request
_MIN_SHRINK = 64


class Line(Protocol):
    def __len__(self) -> int: ...

    @property
    def head(self) -> Request | None: ...

    @property
    def least_served(self) -> float | None:
        """The smallest counter of the tenants in it, where these count."""
        ...

    def add(self, request: Request) -> None: ...

    def remove(self, request: Request) -> bool:
        """Whether it was there."""
        ...

    def __iter__(self) -> Iterator[Request]:
        """In the order in which they would leave; the first k cost O(k log k) and no more."""
        ...


class Heap:
    """Requests by a key that does not change while they are here."""

    def __init__(self, key: Callable[[Request], Place]) -> None:
        self._key = key
        self._heap: list[_Entry] = []
        self._entries: dict[RequestId, _Entry] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def head(self) -> Request | None:
        heap, entries = self._heap, self._entries
        while heap and entries.get(heap[0][2].id) is not heap[0]:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    @property
    def least_served(self) -> float | None:
        return None

    def add(self, request: Request) -> None:
        self._tickets += 1
        entry = (self._key(request), self._tickets, request)
        self._entries[request.id] = entry
        heapq.heappush(self._heap, entry)

    def remove(self, request: Request) -> bool:
        if self._entries.pop(request.id, None) is None:
            return False
        if len(self._heap) > 2 * len(self._entries) + _MIN_SHRINK:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)
        return True

    def __iter__(self) -> Iterator[Request]:
        """Walks down from the top: a child comes after its parent."""
        heap, entries = self._heap, self._entries
        ahead = [(heap[0], 0)] if heap else []
        while ahead:
            entry, i = heapq.heappop(ahead)
            if entries.get(entry[2].id) is entry:
                yield entry[2]
            for child in (2 * i + 1, 2 * i + 2):
                if child < len(heap):
                    heapq.heappush(ahead, (heap[child], child))


class FairLine:
    """A line for each tenant; the head is of the tenant that has had the least service."""

    def __init__(self, key: Callable[[Request], Place], shares: Shares) -> None:
        self._key = key
        self._shares = shares
        self._lines: dict[str, Heap] = {}  # none is empty
        # Each tenant with a line once, and some that have none any more: (counter, place of its
        # first request, name). Counters only grow, so a stale one only comes too early, and is put
        # right then; places only break ties.
        self._tenants: list[tuple[float, Place, str]] = []
        self._listed: set[str] = set()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def head(self) -> Request | None:
        tenant = self._least()
        return self._lines[tenant].head if tenant is not None else None

    def add(self, request: Request) -> None:
        tenant = request.tenant
        if tenant not in self._lines:
            self._lines[tenant] = Heap(self._key)
        self._lines[tenant].add(request)
        if tenant not in self._listed:
            self._listed.add(tenant)
            heapq.heappush(self._tenants, self._turn(tenant))
        self._size += 1

    def remove(self, request: Request) -> bool:
        line = self._lines.get(request.tenant)
        if line is None or not line.remove(request):
            return False
        self._size -= 1
        if not line:
            del self._lines[request.tenant]
        return True

    def __iter__(self) -> Iterator[Request]:
        """As admissions alone would have it: answers that are charged meanwhile may change it."""
        shares = self._shares
        lines = {tenant: iter(line) for tenant, line in self._lines.items()}
        turns = [self._turn(tenant) for tenant in lines]
        heapq.heapify(turns)
        while turns:
            served, place, tenant = turns[0]
            request = next(lines[tenant], None)
            if request is None:
                heapq.heappop(turns)
                continue
            yield request
            charge = shares.input_weight * request.num_prompt / shares.weights.get(tenant, 1.0)
            heapq.heapreplace(turns, (served + charge, place, tenant))

    @property
    def least_served(self) -> float | None:
        tenant = self._least()
        return None if tenant is None else self._shares.of(tenant)

    def _turn(self, tenant: str) -> tuple[float, Place, str]:
        head = self._lines[tenant].head
        assert head, "no line is empty"
        return (self._shares.of(tenant), self._key(head), tenant)

    def _least(self) -> str | None:
        heap, shares = self._tenants, self._shares
        while heap:
            served, _, tenant = heap[0]
            if tenant not in self._lines:
                heapq.heappop(heap)
                self._listed.discard(tenant)
            elif served != shares.of(tenant):
                heapq.heapreplace(heap, self._turn(tenant))
            else:
                return tenant
        return None
