"""An answer as it arrives: per choice the tokens in order and its end, whatever order they come in.

Memory is bounded: of a client that reads slowly at most `MAX_READY` tokens of a choice are kept.
What comes beyond is dropped, and read back (`repair.py`) once the client has taken these.

Choices are given out as they come, or *in turn*: the first token of each, the second of each, and
so on, where one that has ended is passed over. Then their order too is a function of the tokens.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from common.alarm import Alarm
from common.messages import Ended, FinishReason, RequestId, SubmissionId, request_id
from gateway.errors import ApiError
from gateway.repair import Found

MAX_READY = 2048  # tokens of a choice that wait for the client
MAX_AHEAD = 256  # tokens of a choice kept beyond a hole, while it is repaired
MAX_TAKEN = 256  # tokens given out at one time: other answers have their turn in between


@dataclass(frozen=True, slots=True)
class Event:
    """News of one choice: tokens that follow those of earlier events, and the end if this is it."""

    choice: int
    tokens: Sequence[int]
    end: Ended | None = None


class Choice:
    """One request's tokens put in order. Pure.

    Only the next position is ever taken, and nothing after the end. Positions [0, num_known) are
    here; the last `len(_ready)` of them the client has not taken yet.
    """

    __slots__ = (
        "_ahead",
        "_has_dropped",
        "_has_journal",
        "_ready",
        "end",
        "is_stopped",
        "num_known",
        "request",
    )

    def __init__(self, request: RequestId) -> None:
        self.request = request
        self.num_known = 0
        self.end: Ended | None = None  # as told; tokens before it may be missing still
        self.is_stopped = False  # the gateway has seen enough: only the end is awaited
        self._ready: list[int] = []
        self._ahead: dict[int, int] = {}  # position, beyond the next one -> token
        self._has_dropped = False  # more exists than there was room for
        self._has_journal = False

    @property
    def is_complete(self) -> bool:
        return self.end is not None and (self.is_stopped or self.num_known >= self.end.kept)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def has_news(self) -> bool:
        return self.has_ready or self.is_complete

    @property
    def has_room(self) -> bool:
        return len(self._ready) < MAX_READY

    @property
    def wants_repair(self) -> bool:
        """More exists than is here, and there is room for it."""
        if self.is_complete or self.is_stopped or not self.has_room:
            return False
        return self._has_dropped or bool(self._ahead) or self.end is not None

    def add(self, position: int, token: int) -> None:
        """A token as published. A known position changes nothing."""
        if position < self.num_known or self.is_complete or self.is_stopped:
            return
        if position == self.num_known and self.has_room:
            self._ready.append(token)
            self.num_known += 1
            self._settle()
        elif len(self._ahead) < MAX_AHEAD:
            self._ahead[position] = token
        else:
            self._has_dropped = True

    def expect_journal(self) -> None:
        """There is one: if it is gone when it is read, so is the answer."""
        self._has_journal = True

    def finish(self, end: Ended) -> None:
        """The end as published. The first one stands."""
        self.end = self.end or end
        self._settle()

    def fill(self, start: int, found: Found) -> None:
        """What a repair found from `start` on: `num_known` as it was when the repair began."""
        if self.is_complete:
            return
        if not found.has_journal and (start > 0 or self._has_journal):
            reason = "the rest of the answer is no longer stored"
            self.end = Ended(self.request, self.num_known, FinishReason.ERROR, reason)
            return
        self._has_journal |= found.has_journal
        fresh = () if self.is_stopped else found.tokens[self.num_known - start :]
        taken = fresh[: MAX_READY - len(self._ready)]
        self._ready.extend(taken)
        self.num_known += len(taken)
        self._has_dropped = len(taken) < len(fresh)
        self.end = self.end or found.end
        self._settle()

    def stop(self) -> None:
        """Take no more tokens: what the client gets is decided."""
        self.is_stopped = True
        self._ready, self._ahead = [], {}

    def take(self, most: int = MAX_READY) -> list[int]:
        """The next tokens that nobody has taken, up to so many."""
        tokens, self._ready = self._ready[:most], self._ready[most:]
        self._settle()
        return tokens

    def _settle(self) -> None:
        """Take what lies ahead as far as it follows; cut at the end once all is here."""
        if self._ahead:
            while self.has_room and self.num_known in self._ahead:
                self._ready.append(self._ahead.pop(self.num_known))
                self.num_known += 1
            self._ahead = {p: token for p, token in self._ahead.items() if p >= self.num_known}
        if self.end is not None and self.num_known >= self.end.kept:
            surplus = min(self.num_known - self.end.kept, len(self._ready))
            del self._ready[len(self._ready) - surplus :]
            self.num_known -= surplus
            self._ahead = {}


class Answer:
    """All choices of one submission, for one task that answers a client."""

    def __init__(
        self, submission: SubmissionId, num_choices: int, *, in_turn: bool = False
    ) -> None:
        self.submission = submission
        self.choices = [Choice(request_id(submission, index)) for index in range(num_choices)]
        self.has_left = False  # the client
        self.is_closed = False  # nobody answers the client any more
        self.failure: ApiError | None = None
        self._fresh: set[int] = set()  # choices with news
        self._open = set(range(num_choices))  # whose end the client has not been given
        self._turn = 0 if in_turn else None  # whose token or end is next
        self._has_more = False  # the last news were not all there were
        self._news: asyncio.Future[None] | None = None  # that `next` waits for
        self._alarm: Alarm | None = None  # for it

    @property
    def is_over(self) -> bool:
        """Every choice has ended and its end was taken."""
        return not self._open

    @property
    def runs_on(self) -> bool:
        """Somebody may still compute it, who was not told to stop."""
        return not all(choice.is_complete or choice.is_stopped for choice in self.choices)

    @property
    def is_aborted(self) -> bool:
        return self.has_left or self.failure is not None

    async def next(self, seconds: float) -> list[Event]:
        """What is new, waiting for it up to `seconds`; nothing if they pass, or at an abort.

        In turn, it is one token or one end.
        """
        if self._has_more:
            await asyncio.sleep(0)  # a long answer that is all here must not hold up the others
        if not self._has_news and not self.is_aborted:
            await self._wait(seconds)
        if self.is_aborted:
            return []
        events = self._take() if self._turn is None else self._take_turn(self._turn)
        self._has_more = self._has_news
        return events

    async def _wait(self, seconds: float) -> None:
        if self._alarm is None:
            self._alarm = Alarm(self._ring)
        self._news = asyncio.get_running_loop().create_future()
        self._alarm.set(seconds)
        try:
            await self._news
        finally:
            self._news = None
            self._alarm.clear()

    @property
    def _has_news(self) -> bool:
        return bool(self._fresh) if self._turn is None else self._turn in self._fresh

    def close(self) -> None:
        """Nobody answers the client any more."""
        self.is_closed = True
        if self._alarm is not None:
            self._alarm.close()

    def leave(self) -> None:
        """The client is gone: `next` returns at once, and has nothing any more."""
        self.has_left = True
        self._ring()

    def fail(self, error: ApiError) -> None:
        """End what is open with an error, here and now. The first one stands."""
        self.failure = self.failure or error
        self._ring()

    def wake(self, index: int) -> None:
        """Choice `index` has news."""
        if index in self._open:
            self._fresh.add(index)
        if self._has_news:
            self._ring()

    def _ring(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _take(self) -> list[Event]:
        events: list[Event] = []
        room = MAX_TAKEN
        for index in sorted(self._fresh):
            if room <= 0:
                break
            choice = self.choices[index]
            tokens = choice.take(room)
            room -= len(tokens)
            end = choice.end if choice.is_complete and not choice.has_ready else None
            if tokens or end is not None:
                events.append(Event(index, tokens, end))
            self._have_taken(index, end)
        return events

    def _take_turn(self, turn: int) -> list[Event]:
        """The end has a turn of its own: whether it came with the last token is chance."""
        if turn not in self._fresh:
            return []
        choice = self.choices[turn]
        tokens = choice.take(1)
        end = choice.end if choice.is_complete and not tokens else None
        self._have_taken(turn, end)
        if not tokens and end is None:
            return []
        later = [index for index in self._open if index > turn]
        self._turn = min(later or self._open, default=turn)
        return [Event(turn, tokens, end)]

    def _have_taken(self, index: int, end: Ended | None) -> None:
        if end is not None:
            self._open.discard(index)
        if end is not None or not self.choices[index].has_news:
            self._fresh.discard(index)
