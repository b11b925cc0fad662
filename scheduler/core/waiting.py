"""The waiting line: a heap by place from which a request can leave anywhere.

Adding and taking cost O(log n), leaving O(1): the heap keeps an entry that left until it comes to
the top, or until half of the heap is such entries. Held requests are in line, yet never its head.
"""

import heapq
from collections.abc import Iterator

from common.messages import RequestId
from scheduler.core.request import Place, Request

_Entry = tuple[Place, int, Request, int]  # place, ticket, request, its tokens when it was added


class WaitingLine:
    def __init__(self) -> None:
        self.num_tokens = 0  # to be computed before the whole line has caught up
        self._heap: list[_Entry] = []
        self._entries: dict[RequestId, _Entry] = {}  # those in line and not held
        self._held: dict[RequestId, Request] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._entries) + len(self._held)

    def __iter__(self) -> Iterator[Request]:
        """All in order, held ones at their places: O(n log n), for people and tests."""
        members = [entry[2] for entry in self._entries.values()]
        return iter(sorted([*members, *self._held.values()], key=lambda request: request.place))

    def first(self, count: int) -> list[Request]:
        """The first `count` in order, held ones at their places: O(n)."""
        members = [entry[2] for entry in self._entries.values()]
        members += self._held.values()
        return heapq.nsmallest(count, members, key=lambda request: request.place)

    @property
    def head(self) -> Request | None:
        heap, entries = self._heap, self._entries
        while heap and entries.get(heap[0][2].id) is not heap[0]:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def add(self, request: Request) -> None:
        if request.held:
            self._held[request.id] = request
            return
        self._tickets += 1
        entry = (request.place, self._tickets, request, len(request.tokens))
        self._entries[request.id] = entry
        self.num_tokens += entry[3]
        heapq.heappush(self._heap, entry)

    def remove(self, request: Request) -> None:
        if self._held.pop(request.id, None) is None:
            self.num_tokens -= self._entries.pop(request.id)[3]
            self._shrink()

    def _shrink(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)
