"""Who takes part in a step, and with which tokens and blocks: one decision a method."""

from collections.abc import Iterable

from common.messages import BlockId, Chunk
from scheduler.core.block_pool import Blocks, blocks_for
from scheduler.core.decision import Decision, Reason
from scheduler.core.displacing import victims
from scheduler.core.host_pool import HostPool
from scheduler.core.prefix_cache import PrefixCache
from scheduler.core.request import Place, Request, Status
from scheduler.core.running import Running
from scheduler.core.shares import Shares
from scheduler.core.strategies import BATCHING, PREFILL, Choices
from scheduler.core.waiting import WaitingLine


class Planner:
    def __init__(
        self,
        choices: Choices,
        pool: Blocks,
        host: HostPool,
        cache: PrefixCache | None,
        running: Running,
        waiting: WaitingLine,
        shares: Shares,
    ) -> None:
        self.choices = choices
        self.pool = pool
        self.host = host
        self.cache = cache
        self.running = running
        self.waiting = waiting
        self.shares = shares
        self._chunk = PREFILL[choices.prefill]
        self._batching = BATCHING[choices.batching]()
        self._swaps = choices.preemption == "swap"
        self._ranks = 0  # admissions so far, for policy=fair

    # --- Rows that run ------------------------------------------------------------------------

    def decode(self, rows: Iterable[Request], step: Decision) -> list[Request]:
        """Plan a token for each row that lacks only the last one known or promised.

        Returns the others, whose prompts are not computed yet. What `extend` does, written out for
        the case that steps are full of, and shorter still for tokens that need no look at blocks
        and length: at 1,000 rows, that is what a plan costs.
        """
        prefilling = []
        chunks, requests, block_size = step.chunks, step.requests, self.pool.block_size
        left, context = step.tokens_left, 0
        for request in rows:  # victims stand behind: they leave ahead of this loop
            if request.easy_tokens and left:
                request.easy_tokens -= 1
                chunks.append(Chunk(request.id, request.num_planned, 1, (), True))
                requests.append(request)
                left -= 1
                request.num_planned += 1
                context += request.num_planned
                request.num_promised += 1
                continue
            known = len(request.tokens) + request.num_promised
            if known - request.num_planned > 1:
                prefilling.append(request)
                continue
            if known >= request.max_length:
                continue  # its last token is known or promised
            if not left:
                step.passed.append((request.id, Reason.NO_TOKENS))
                continue
            blocks: tuple[BlockId, ...] = ()
            if known > len(request.block_table) * block_size and not (
                blocks := self._grow(request, 1, step)
            ):
                continue
            chunks.append(Chunk(request.id, known - 1, 1, blocks, True))
            requests.append(request)
            left -= 1
            context += known
            request.num_planned = known
            request.num_promised += 1
            if known + 1 == request.max_length:
                self.running.leaves(request)
            room = len(request.block_table) * block_size
            request.easy_tokens = max(0, min(room, request.max_length - 2) - known)
        step.num_decoding += step.tokens_left - left
        step.decode_context += context
        step.tokens_left = left
        return prefilling

    def extend(self, request: Request, step: Decision) -> None:
        """Plan the next chunk of a prompt, if tokens and blocks last."""
        count = self._chunk(request.num_pending, step.tokens_left)
        if not count:
            step.passed.append((request.id, Reason.NO_TOKENS))
            return
        stop = blocks_for(request.num_planned + count, self.pool.block_size)
        missing = stop - len(request.block_table)
        if missing <= 0:
            self._plan_chunk(request, count, (), step)
        elif blocks := self._grow(request, missing, step):
            self._plan_chunk(request, count, blocks, step)

    def _grow(self, request: Request, missing: int, step: Decision) -> tuple[BlockId, ...]:
        """The blocks that it lacks; none if it has to wait for them."""
        is_easy = not step.num_claimed and missing <= self.pool.num_free
        if not (is_easy or self._make_room(request, missing, step)):
            return ()
        blocks = self.pool.take(missing)
        self.running.grow(request, blocks)
        return blocks

    def _make_room(self, request: Request, missing: int, step: Decision) -> bool:
        """Whether the blocks are free now. If not, preempt rows behind it until they will be.

        What rows before it wait for in this step is left to them. The last of all preempts nobody,
        itself neither: it keeps what it has computed and waits.
        """
        pool, running = self.pool, self.running
        while (supply := pool.num_expected + running.num_leaving - step.num_claimed) < missing:
            victim = running.victim()
            if victim is request:
                break
            self._preempt(victim, step, is_displaced=False)
        if missing <= min(pool.num_free, supply):
            return True
        step.num_claimed += missing
        step.short.append(request.id)
        return False

    def _preempt(self, victim: Request, step: Decision, *, is_displaced: bool) -> None:
        """Take its row and its blocks. Its computed tokens go to host memory, or are dropped.

        On shortage it comes back before those who never ran; displaced, it keeps its place.
        """
        is_saved = self._swaps and self._save(victim, step)
        self.lose_row(victim, step.step - 1)
        victim.preemptions += 1
        victim.is_returning = not is_displaced
        victim.move_to(Status.SWAPPED if is_saved else Status.WAITING)
        self.waiting.add(victim)
        how = Reason.SWAPPED if is_saved else Reason.RECOMPUTED
        step.preempted.append((victim.id, Reason.DISPLACED if is_displaced else how))

    def _save(self, victim: Request, step: Decision) -> bool:
        """Copy what the steps before this one compute of it, if host memory has room."""
        count = blocks_for(victim.num_planned, self.pool.block_size)
        if count > self.host.num_free:
            return False
        victim.host_blocks = self.host.take(count)
        victim.num_saved = victim.num_planned
        step.swap_out += zip(victim.block_table[:count], victim.host_blocks, strict=True)
        return True

    def lose_row(self, request: Request, after: int) -> None:
        """Its blocks are free once the last step that may touch them, `after`, is applied."""
        if self.cache:
            self.cache.withdraw(request)
        self.running.vacate(request, after)

    def make_way(self, step: Decision) -> None:
        """Preempt less urgent rows for the head of the line, if that is what it lacks.

        Before anything is planned: a row with a chunk in this step could not leave in it. Nobody is
        admitted in a step that preempts, so the head comes in with the next one.
        """
        head, rows = self.waiting.head, self.running.rows
        if head is None or not rows or rows[-1].rank < head.place:
            return
        if head.num_promised or not self._may_join(head) or self._waits_for_prefix(head):
            return
        rank = self._rank(head)
        for victim in victims(head, rank, self.running, self.pool, step.num_ended):
            self._preempt(victim, step, is_displaced=True)

    # --- The line -----------------------------------------------------------------------------

    def admit_line(self, step: Decision) -> None:
        """Start rows from the head of the line on, until one has to wait."""
        while (head := self.waiting.head) and self._admit(head, step):
            pass
        head_waits = head is not None and step.passed[-1] == (head.id, Reason.NO_TOKENS)
        self._batching.settle(may_grow=head_waits or self.waiting.has_parked)

    def _admit(self, request: Request, step: Decision) -> bool:
        """Start its row, with the blocks of all its known tokens; or let it stand aside.

        False: it has to wait, and with it all behind it.
        """
        if obstacle := self._obstacle(request, step):
            step.passed.append((request.id, obstacle))
            return False
        hit = self._find_prefix(request)
        if hit is None:
            return True
        start = request.num_saved or len(hit) * self.pool.block_size
        count = self._chunk(len(request.tokens) - start, step.tokens_left)
        missing = self._num_blocks(request) - len(hit)
        if obstacle := self._lack(request, hit, missing, count):
            step.passed.append((request.id, obstacle))
            step.num_missing = missing + self.running.num_growing - self.pool.num_free
            return False
        self._start(request, hit, missing, start, step)
        self._plan_chunk(request, count, tuple(request.block_table), step)
        return True

    def _obstacle(self, request: Request, step: Decision) -> Reason | None:
        """What keeps it from joining, whatever it needs."""
        if step.preempted or step.short:
            return Reason.SHORTAGE
        if request.num_promised:
            return Reason.PROMISED
        if not self._may_join(request):
            return Reason.CLOSED
        if not self.running.has_seat(step.num_ended):
            return Reason.NO_SEAT
        return None if step.tokens_left else Reason.NO_TOKENS

    def _may_join(self, request: Request) -> bool:
        num_members = len(self.running) + len(self.waiting.returning)
        return self._batching.may_join(request, num_members)

    def _find_prefix(self, request: Request) -> list[BlockId] | None:
        """The cached blocks that it can begin with; None: it waits for another to compute more."""
        if self.cache is None or request.status is Status.SWAPPED:
            return []
        hit = self.cache.match(request)
        content = self.cache.worth_waiting(request, len(hit))
        if content is None:
            return hit
        self.waiting.park(request, content)
        return None

    def _waits_for_prefix(self, request: Request) -> bool:
        if self.cache is None or request.status is Status.SWAPPED:
            return False
        hit = self.cache.match(request)
        return self.cache.worth_waiting(request, len(hit)) is not None

    def _lack(
        self, request: Request, hit: list[BlockId], missing: int, count: int
    ) -> Reason | None:
        if not count:
            return Reason.NO_TOKENS
        pool = self.pool
        # One more block for each that grows, or the newcomer would soon be preempted again.
        headroom = self.running.num_growing
        has_blocks = missing + headroom <= pool.num_free - pool.num_idle(hit)
        if (
            has_blocks
            and pool.has(missing)
            and self.running.keeps_word(request, self._rank(request), hit)
        ):
            return None
        return Reason.NO_BLOCKS

    def _num_blocks(self, request: Request) -> int:
        """That its admission takes, shared ones included."""
        if self.choices.kv == "reserved":
            return request.max_blocks
        return blocks_for(len(request.tokens), self.pool.block_size)

    def _start(
        self, request: Request, hit: list[BlockId], missing: int, start: int, step: Decision
    ) -> None:
        self.waiting.remove(request)
        is_swapped = request.status is Status.SWAPPED
        request.move_to(Status.RUNNING)
        request.row_since = step.step
        request.is_returning = False
        self.pool.share(hit)  # before others are taken: that may be the idle ones among them
        request.block_table = [*hit, *self.pool.take(missing)]
        request.num_computed = request.num_planned = start
        request.rank = self._rank(request)
        self._ranks += 1
        if not request.was_admitted:
            request.was_admitted = True
            request.num_cached = min(start, request.num_prompt)
            if self.choices.policy == "fair":
                self.shares.charge_input(request.tenant, request.num_prompt)
        if is_swapped:
            step.swap_in += zip(request.block_table, request.host_blocks, strict=False)
            self.drop_saved(request)
        if self.cache:
            self.cache.expect(request, len(hit))
        self.running.add(request)
        step.admitted.append(request.row_start())

    def _rank(self, request: Request) -> Place:
        """Where it stands among rows, now and whenever it comes back.

        As in line; but where tenants take turns in line, by who was admitted first.
        """
        if request.rank:
            return request.rank
        return (self._ranks,) if self.choices.policy == "fair" else request.place

    def drop_saved(self, request: Request) -> None:
        """Its blocks in host memory are needed no more."""
        self.host.give_back(request.host_blocks)
        request.host_blocks, request.num_saved = [], 0

    # --- Both ---------------------------------------------------------------------------------

    def _plan_chunk(
        self, request: Request, count: int, blocks: tuple[BlockId, ...], step: Decision
    ) -> None:
        start = request.num_planned
        stop = request.num_planned = start + count
        samples = stop == len(request.tokens) + request.num_promised
        step.chunks.append(Chunk(request.id, start, count, blocks, samples))
        step.requests.append(request)
        step.tokens_left -= count
        if count == 1:
            step.num_decoding += 1
            step.decode_context += stop
        else:
            step.prefill_attention += count * (start + stop) * 0.5
        if not samples:
            request.num_filling += 1
            return
        request.num_promised += 1
        if request.is_all_promised:
            self.running.leaves(request)
