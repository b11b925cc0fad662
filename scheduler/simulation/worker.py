"""A worker that computes nothing: plans take the time that a cost model says, tokens are known."""

from collections import deque
from collections.abc import Sequence

from common.messages import Chunk, FinishReason, RequestId, RowStart, Sampled, StepPlan, StepResult
from scheduler.core.decision import Decision, Reason
from scheduler.core.scheduler import Scheduler
from scheduler.simulation.cache_use import CacheUse
from scheduler.simulation.cost import CostModel, decoding, load_of
from scheduler.simulation.drawing import Recorder
from scheduler.simulation.measures import Measures
from scheduler.simulation.track import NEVER, Track
from scheduler.simulation.workload import END_TOKEN


class VirtualWorker:
    """Plans wait for it in line, as they do for a real one."""

    def __init__(
        self,
        core: Scheduler,
        cost: CostModel,
        measures: Measures,
        tracks: dict[RequestId, Track],
        recorder: Recorder,
    ) -> None:
        self.core = core
        self.cost = cost
        self.measures = measures
        self.tracks = tracks  # of all requests that are not over
        self.recorder = recorder
        self.use = CacheUse(core.pool.num_blocks, core.pool.block_size)
        self.busy_seconds = 0.0
        self.rows: dict[RequestId, Track] = {}
        self.plans: deque[tuple[StepPlan, Decision]] = deque()
        self.computing: StepPlan | None = None
        self._chunks: Sequence[Chunk] = ()  # of it, without rows that ended by themselves
        self._num_tokens = 0
        self._seconds = 0.0
        self._previous = NEVER - 1  # the step before: none, which no request's is
        self.over: set[RequestId] = set()  # ended by themselves, and have rows still

    def plan(self) -> None:
        """Let the scheduler plan as far ahead as it will."""
        core = self.core
        while plan := core.schedule():
            self.plans.append((plan, core.last))

    def start(self) -> float | None:
        """Begin the next step, if it is idle and there is a plan: the seconds that it takes."""
        if self.computing or not self.plans:
            return None
        plan, step = self.plans.popleft()
        for request_id, how in step.preempted:
            track = self.tracks.get(request_id)
            if track and not track.is_over:  # its end may have come after the plan was made
                self._preempt(track, how)
        for request_id in plan.released:
            self.use.release(self.rows.pop(request_id))
            self.over.discard(request_id)
        for row in plan.admitted:
            self._admit(row)
        over, chunks = self.over, plan.chunks
        self._chunks = [c for c in chunks if c.request_id not in over] if over else chunks
        num_swapped = len(plan.swap_out) + len(plan.swap_in)
        swapped_tokens = num_swapped * self.use.block_size
        if not over and step.num_decoding == len(chunks):  # the scheduler counted what it asks for
            load = decoding(step.num_decoding, step.decode_context, swapped_tokens)
        else:
            load = load_of(self._chunks, swapped_tokens)
        self.computing, self._num_tokens = plan, load.tokens
        self._seconds = self.cost.seconds(load) if self._chunks or num_swapped else 0.0
        return self._seconds

    def finish(self, now: float) -> StepResult:
        """The step is computed: its tokens, counted and timed."""
        plan = self.computing
        assert plan
        self.computing = None
        measures, rows, use = self.measures, self.rows, self.use
        step, previous = measures.step_ends(now), self._previous
        sampled: list[Sampled] = []
        num_steady = 0
        for chunk in self._chunks:
            track = rows[chunk.request_id]
            track.last_chunk = chunk
            if chunk.new_blocks:
                use.take(track, chunk.new_blocks)
            if not chunk.samples:
                continue
            token = track.sampled
            token.position = position = track.num_output
            track.num_output = position + 1
            if track.last_step == previous:
                num_steady += 1
            else:
                measures.token_after_pause(track, now)
            track.last_step = step
            if position + 1 == track.num_answer:
                self._end(track, now)
            sampled.append(token)
        measures.tokens(num_steady, previous, now)
        self._count(now)
        self._previous = step
        return StepResult(plan.step, tuple(sampled), self._seconds)

    def _preempt(self, track: Track, how: Reason) -> None:
        track.preemptions += 1
        track.is_swapped = how is Reason.SWAPPED
        self.measures.preemptions[how.value] += 1
        self.measures.waits(track)

    def _admit(self, row: RowStart) -> None:
        track = self.rows[row.request_id] = self.tracks[row.request_id]
        self.measures.starts(track, row.num_computed, self.use.block_size)
        self.use.store(row.num_computed)

    def _end(self, track: Track, now: float) -> None:
        self.measures.ends(track, now)
        last = track.sampled
        if track.ends_itself:
            self.over.add(track.id)
            last.token, last.finish = END_TOKEN, FinishReason.STOP
        else:
            last.finish = FinishReason.LENGTH

    def _count(self, now: float) -> None:
        measures, use = self.measures, self.use
        use.store(self._num_tokens)
        use.last(self._seconds)
        self.busy_seconds += self._seconds
        measures.num_steps += bool(self._chunks)
        measures.step_tokens += self._num_tokens
        measures.num_rows += len(self._chunks)
        measures.fairness.note(now)
        if self.recorder.is_on:
            mine = self.core.requests
            present = [track for track in self.tracks.values() if track.id in mine]
            self.recorder.note(self._chunks, self.rows, present)
