"""Writes of one epoch: raises as soon as another scheduler leads."""

from collections.abc import Sequence

from common.bus import Cursors, News, Outcome, SchedulerBus, Write
from scheduler.damage import JournalWrite, refused
from scheduler.leadership import LeadershipLostError

WRITES_AT_ONCE = 512  # a round trip blocks the server for as long as it takes


class Writer:
    def __init__(self, bus: SchedulerBus, epoch: int) -> None:
        self.bus = bus
        self.epoch = epoch
        self._refused: list[JournalWrite] = []

    async def write(self, writes: Sequence[Write]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for first in range(0, len(writes), WRITES_AT_ONCE):
            part = writes[first : first + WRITES_AT_ONCE]
            answers = await self.bus.write(self.epoch, part)
            self._look_at(part, answers)
            outcomes += answers
        return outcomes

    async def write_and_wait(
        self, writes: Sequence[Write], cursors: Cursors, block_seconds: float
    ) -> News:
        """Write all, and wait for what comes after the cursors, up to so long."""
        first = max(0, len(writes) - WRITES_AT_ONCE)
        await self.write(writes[:first])
        last = writes[first:]
        answers, news = await self.bus.write_and_wait(self.epoch, last, cursors, block_seconds)
        self._look_at(last, answers)
        return news

    def _look_at(self, writes: Sequence[Write], outcomes: Sequence[Outcome]) -> None:
        self._refused += refused(writes, outcomes)
        if Outcome.FENCED in outcomes:
            raise LeadershipLostError("another scheduler took the lease")

    def take_refused(self) -> list[JournalWrite]:
        """What journals have refused since the last look."""
        taken, self._refused = self._refused, []
        return taken
