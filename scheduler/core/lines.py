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
_Turn = tuple[float, Place, str]  # service, place of its first request, tenant
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
        # Turns, the least first; only the newest of each tenant counts. Counters only grow, so that
        # a turn whose counter is old comes too early, and is put right then.
        self._turns: list[_Turn] = []
        self._newest: dict[str, _Turn] = {}
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
        self._size += 1
        if self._lines[tenant].head is request:
            self._list(tenant)

    def remove(self, request: Request) -> bool:
        tenant = request.tenant
        line = self._lines.get(tenant)
        was_head = line is not None and line.head is request
        if line is None or not line.remove(request):
            return False
        self._size -= 1
        if not line:
            del self._lines[tenant], self._newest[tenant]
        elif was_head:
            self._list(tenant)
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

    def _turn(self, tenant: str) -> _Turn:
        head = self._lines[tenant].head
        assert head, "no line is empty"
        return (self._shares.of(tenant), self._key(head), tenant)

    def _list(self, tenant: str) -> None:
        self._newest[tenant] = turn = self._turn(tenant)
        heapq.heappush(self._turns, turn)
        if len(self._turns) > 2 * len(self._lines) + _MIN_SHRINK:
            self._turns = list(self._newest.values())
            heapq.heapify(self._turns)

    def _least(self) -> str | None:
        while self._turns:
            turn = self._turns[0]
            served, _, tenant = turn
            if self._newest.get(tenant) is turn:
                if served == self._shares.of(tenant):
                    return tenant
                heapq.heappop(self._turns)
                self._list(tenant)
            else:
                heapq.heappop(self._turns)
        return None
