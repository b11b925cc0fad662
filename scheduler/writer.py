"""Writes of one epoch: raises as soon as another scheduler leads."""

from collections.abc import Sequence

from common.bus import Outcome, SchedulerBus, Write
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
            self._refused += refused(part, answers)
            outcomes += answers
            if Outcome.FENCED in outcomes:
                raise LeadershipLostError("another scheduler took the lease")
        return outcomes

    def take_refused(self) -> list[JournalWrite]:
        """What journals have refused since the last look."""
        taken, self._refused = self._refused, []
        return taken
