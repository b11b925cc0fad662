"""Which requests have run out of time; pure."""

import heapq

from scheduler.ledger import Account

_Entry = tuple[float, float, Account]  # when, order of arrival, whose


class Deadlines:
    """A heap. What has ended before its time stays in it, until half of the heap is such."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._limit = 64

    def add(self, when: float, account: Account) -> None:
        if len(self._heap) >= self._limit:
            self._heap = [entry for entry in self._heap if not entry[2].is_done]
            heapq.heapify(self._heap)
            self._limit = 2 * len(self._heap) + 64
        heapq.heappush(self._heap, (when, account.request.arrival, account))

    def __len__(self) -> int:
        return len(self._heap)

    def take_due(self, now: float) -> list[Account]:
        """Each once, if it has not ended."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            account = heapq.heappop(self._heap)[2]
            if not account.is_done:
                due.append(account)
        return due
