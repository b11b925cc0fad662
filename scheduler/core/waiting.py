"""The waiting line: who is next, and who is passed over and why.

Those that were preempted on shortage go first: they were admitted once, and it is not their fault.
The others go as the policy has it. Who stands aside is in line, and is never its head.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice

from common.messages import RequestId
from scheduler.core.decision import Reason
from scheduler.core.lines import Heap, Line
from scheduler.core.request import Request
from scheduler.core.shares import Shares


class WaitingLine:
    def __init__(self, line: Line, shares: Shares | None = None) -> None:
        """`shares`: told whose requests wait, where that counts."""
        self.num_tokens = 0  # to be computed before all that may be admitted has caught up
        self.returning = Heap(lambda request: request.rank)
        self._line = line
        self._shares = shares
        self._present: set[RequestId] = set()  # those that `shares` was told of
        self._tokens: dict[RequestId, int] = {}  # of those who do not stand aside
        self._aside: dict[RequestId, tuple[Request, Reason]] = {}
        self._parked: defaultdict[bytes, list[Request]] = defaultdict(list)
        self._awaited: dict[RequestId, bytes] = {}  # by those that are parked
        self._drained: set[str] = set()

    def __len__(self) -> int:
        return len(self._tokens) + len(self._aside)

    def __iter__(self) -> Iterator[Request]:
        """All: those that can be admitted in their order, then those that stand aside."""
        yield from self.returning
        yield from self._line
        yield from (request for request, _ in self._aside.values())

    @property
    def head(self) -> Request | None:
        return self.returning.head or self._line.head

    @property
    def num_ready(self) -> int:
        """Those that do not stand aside."""
        return len(self._tokens)

    @property
    def num_held(self) -> int:
        """Those that nobody but an operator lets go."""
        return sum(reason is not Reason.PREFIX for _, reason in self._aside.values())

    @property
    def has_parked(self) -> bool:
        return bool(self._awaited)

    def first(self, count: int) -> list[Request]:
        """The first `count`, those that stand aside at their places."""
        ready = list(islice(self, min(count, len(self._tokens))))
        aside = heapq.nsmallest(
            count, (request for request, _ in self._aside.values()), key=lambda r: r.place
        )
        merged = heapq.merge(ready, aside, key=lambda request: request.place)
        return list(islice(merged, count)) if aside else ready

    def aside(self, request: Request) -> Reason | None:
        """Why it is passed over, if it is."""
        found = self._aside.get(request.id)
        return found[1] if found else None

    def add(self, request: Request) -> None:
        if request.held:
            self._aside[request.id] = (request, Reason.HELD)
        elif request.tenant in self._drained and not request.was_admitted:
            self._aside[request.id] = (request, Reason.DRAINED)
        else:
            if self._shares and request.id not in self._present:
                self._present.add(request.id)
                self._shares.came(request.tenant, self._line.least_served)
            self._stand_in(request)

    def _stand_in(self, request: Request) -> None:
        (self.returning if request.is_returning else self._line).add(request)
        # Of a swapped one more may be saved than is known: what steps in flight sample.
        self._tokens[request.id] = num_tokens = max(1, len(request.tokens) - request.num_saved)
        self.num_tokens += num_tokens

    def remove(self, request: Request) -> None:
        if request.id in self._present:
            assert self._shares
            self._present.remove(request.id)
            self._shares.left(request.tenant)
        self._step_out(request)

    def _step_out(self, request: Request) -> None:
        self._awaited.pop(request.id, None)
        if self._aside.pop(request.id, None) is None:
            self.num_tokens -= self._tokens.pop(request.id)
            if not self.returning.remove(request):
                self._line.remove(request)

    def park(self, request: Request, content: bytes) -> None:
        """Pass it over until the block with this content is computed, or will not be."""
        self._step_out(request)
        self._aside[request.id] = (request, Reason.PREFIX)
        self._awaited[request.id] = content
        self._parked[content].append(request)

    def awaited(self, request: Request) -> bytes | None:
        """The content of the block for which it is parked."""
        return self._awaited.get(request.id)

    def unpark(self, contents: Iterable[bytes]) -> None:
        """Blocks with these contents are computed, or will not be: who waits for them goes on."""
        if not self._parked:
            return
        for content in contents:
            for request in self._parked.pop(content, ()):
                if self._awaited.get(request.id) == content:  # it may have left meanwhile
                    self._step_out(request)
                    self._stand_in(request)

    def drain(self, tenant: str) -> None:
        """Pass over all of the tenant that never ran, also those that come, until `undrain`."""
        if tenant not in self._drained:
            moved = [request for request in self if request.tenant == tenant]
            self._drained.add(tenant)
            self._add_again(moved)

    def undrain(self, tenant: str) -> None:
        if tenant in self._drained:
            self._drained.remove(tenant)
            aside = [request for request, why in self._aside.values() if why is Reason.DRAINED]
            self._add_again([request for request in aside if request.tenant == tenant])

    def _add_again(self, requests: list[Request]) -> None:
        for request in requests:
            self.remove(request)
            self.add(request)
