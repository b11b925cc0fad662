"""What a scheduler may do next: take the lease, read, write, give a worker up, crash."""

from collections.abc import Iterator

from tests.model.checker import Move
from tests.model.decisions import Decisions
from tests.model.keys import Op, put
from tests.model.scheduler import Leader, read, remember, take_over
from tests.model.settings import FALSE_DEATH, LANDS_LATE, SCHEDULER_CRASHES, TAKEOVER
from tests.model.state import State
from tests.model.writes import Writes


class SchedulerMoves(Writes):
    def moves(self, number: int) -> Iterator[Move[State]]:
        leader = self.state.leaders[number]
        who = f"scheduler {number}"
        if leader.epoch == 0:
            yield from self._takeover(number, who)
            return
        decisions = Decisions(self.state.redis, leader, self.settings)
        ops = list(decisions.writes())
        for op in ops:
            yield from self._leader_write(number, who, op)
        fenced = leader.epoch != self.state.redis.epoch
        if fenced and self.settings.without != "epoch is compared":
            if not ops:  # nothing to write, so its next renewal tells it
                yield Move(f"{who} steps down", self._with_leader(number, Leader()))
            return  # what else it reads and thinks nobody sees
        yield from self.fault(SCHEDULER_CRASHES, who, self._with_leader(number, Leader()))
        yield from self._leader_reads(number, who, decisions)
        yield from self._losses(number, who)

    def _leader_write(self, number: int, who: str, op: Op) -> Iterator[Move[State]]:
        landed, answer = self.land(op)
        leader = self.state.leaders[number]
        after = remember(leader, op, answer, self.settings.without)
        landed = landed._replace(leaders=put(landed.leaders, number, after))
        yield Move(f"{who} {op.name} {op.args}: {answer}", landed)
        if answer == "OK":  # a lost answer alone is harmless: it repeats before it does more
            repeats = self._with_leader(number, leader._replace(unanswered=op))
            late = repeats._replace(late=(*repeats.late, op))
            yield from self.fault(LANDS_LATE, f"{who} {op.name} {op.args}", late)

    def _takeover(self, number: int, who: str) -> Iterator[Move[State]]:
        epochs = [leader.epoch for leader in self.state.leaders]
        if number != epochs.index(0):
            return  # as good as the first that does not lead
        is_fault = self.state.redis.epoch in epochs and self.state.redis.epoch > 0
        if is_fault and not (self.state.faults and TAKEOVER in self.settings.faults):
            return
        redis, leader = take_over(self.state.redis, self.settings)
        after = self._with_leader(number, leader)._replace(redis=redis)
        if is_fault:
            yield from self.fault(TAKEOVER, who, after)
        else:
            yield Move(f"{who} takes the lease", after)

    def _leader_reads(self, number: int, who: str, decisions: Decisions) -> Iterator[Move[State]]:
        leader = decisions.leader
        if leader.takes_over:
            if decisions.has_closed_all():
                leader = read(self.state.redis, leader)
                leader = leader._replace(takes_over=False)
                yield Move(f"{who} rebuilds", self._with_leader(number, leader))
            return
        news = read(self.state.redis, leader)
        if news != leader:
            yield Move(f"{who} reads", self._with_leader(number, news))

    def _losses(self, number: int, who: str) -> Iterator[Move[State]]:
        leader = self.state.leaders[number]
        if leader.takes_over:
            return
        for name in self.state.redis.workers - leader.lost:
            after = self._with_leader(number, leader._replace(lost=leader.lost | {name}))
            if self.state.workers[name].lives:
                yield from self.fault(FALSE_DEATH, f"{who} gives up {name}", after)
            else:
                yield Move(f"{who} gives up {name}", after)

    def _with_leader(self, number: int, leader: Leader) -> State:
        return self.state._replace(leaders=put(self.state.leaders, number, leader))
