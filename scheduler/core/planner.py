"""Who takes part in a step, and with which tokens and blocks: one decision a method."""

from common.messages import BlockId, Chunk
from scheduler.core.block_pool import BlockPool
from scheduler.core.decision import Decision, Reason
from scheduler.core.request import Request, Status
from scheduler.core.running import Running
from scheduler.core.strategies import Strategies
from scheduler.core.waiting import WaitingLine


class Planner:
    def __init__(
        self,
        pool: BlockPool,
        running: Running,
        waiting: WaitingLine,
        strategies: Strategies,
        max_running: int,
    ) -> None:
        self.pool = pool
        self.running = running
        self.waiting = waiting
        self.strategies = strategies
        self.max_running = max_running

    def extend(self, request: Request, pending: int, step: Decision) -> None:
        """Plan the next chunk of one that runs, if tokens and blocks last."""
        if not step.tokens_left or request.is_all_promised:
            return
        count = 1 if pending == 1 else self.strategies.chunk(pending, step.tokens_left)
        stop, blocks = request.num_planned + count, request.block_table
        if stop <= len(blocks) * self.pool.block_size:
            self._plan_chunk(request, count, (), step)
            return
        missing = self.pool.blocks_for(stop) - len(blocks)
        if self._make_room(request, missing, step):
            taken = self.pool.take(missing)
            self.running.grow(request, taken)
            self._plan_chunk(request, count, taken, step)

    def _make_room(self, request: Request, missing: int, step: Decision) -> bool:
        """Whether the blocks are free now. If not, preempt younger ones until they will be.

        What older requests wait for in this step is left to them. The youngest of all preempts
        nobody, itself neither: it keeps what it has computed and waits.
        """
        pool, running = self.pool, self.running
        while (supply := pool.num_expected + running.num_leaving - step.num_claimed) < missing:
            victim = running.victim()
            if victim is request:
                break
            self._preempt(victim, step)
        if missing <= min(pool.num_free, supply):
            return True
        step.num_claimed += missing
        step.short.append(request.id)
        return False

    def _preempt(self, victim: Request, step: Decision) -> None:
        """Take its row and its blocks. It goes back to its place in line and computes anew."""
        self.running.vacate(victim, step.step - 1)
        victim.preemptions += 1
        victim.move_to(Status.WAITING)
        self.waiting.add(victim)
        step.preempted.append(victim.id)

    def admit(self, request: Request, step: Decision) -> bool:
        """Start the row of the first in line, with the blocks of all its known tokens."""
        count = self.strategies.chunk(request.num_pending, step.tokens_left)
        missing = self.pool.blocks_for(self.strategies.reserve(request))
        if obstacle := self._obstacle(request, count, missing, step):
            step.passed = (request.id, obstacle)
            return False
        self.waiting.remove(request)
        request.move_to(Status.RUNNING)
        request.admitted_step = step.step
        blocks = self.pool.take(missing)
        request.block_table = list(blocks)
        self.running.add(request)
        step.admitted.append(request.row_start())
        self._plan_chunk(request, count, blocks, step)
        return True

    def _obstacle(
        self, request: Request, count: int, missing: int, step: Decision
    ) -> Reason | None:
        pool, running = self.pool, self.running
        # One more block for each that grows, or the newcomer would soon be preempted again.
        headroom = running.num_growing
        checks = (
            (not (step.preempted or step.short), Reason.SHORTAGE),
            (request.num_promised == 0, Reason.PROMISED),
            (self.strategies.may_join(len(running)), Reason.CLOSED),
            (len(running) < self.max_running, Reason.NO_SEAT),
            (count > 0, Reason.NO_TOKENS),
            (missing + headroom <= pool.num_free, Reason.NO_BLOCKS),
        )
        for is_fine, reason in checks:
            if not is_fine:
                return reason
        keeps_word = running.keeps_word(request, pool.num_expected)
        return None if keeps_word else Reason.NO_BLOCKS

    def _plan_chunk(
        self, request: Request, count: int, blocks: tuple[BlockId, ...], step: Decision
    ) -> None:
        start = request.num_planned
        stop = request.num_planned = start + count
        samples = stop == len(request.tokens) + request.num_promised
        step.chunks.append(Chunk(request.id, start, count, blocks, samples))
        step.requests.append(request)
        step.tokens_left -= count
        request.in_flight += 1
        if samples:
            request.num_promised += 1
            if request.is_all_promised:
                self.running.num_leaving += len(request.block_table)
