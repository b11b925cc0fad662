"""Drive the core with arbitrary interleavings against a worker that checks what it is told."""

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, reject, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.codec import decode_plan, encode_plan
from common.messages import (
    Ending,
    FinishReason,
    GatewayId,
    RequestId,
    Sampling,
    StepPlan,
    StepResult,
    SubmissionId,
    Submit,
)
from scheduler.core.decision import Reason
from scheduler.core.invariants import check
from scheduler.core.request import Request, Status
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.core.shares import Shares
from scheduler.core.strategies import TABLES, Choices
from tests.doubles import ShadowWorker

END_TOKEN = 0
GATEWAYS = (GatewayId("a"), GatewayId("b"))
INTERFERENCES = [
    *("add", "hold", "release", "release", "priority", "gateways"),
    *("take_back", "drain", "undrain", "undrain"),
    *("cancelled", "stop", "deadline"),
]


@st.composite
def allowed_choices(draw: st.DrawFn) -> Choices:
    """Every combination that is not refused."""
    values: dict[str, object] = {
        name: draw(st.sampled_from(list(table))) for name, table in TABLES.items()
    }
    values |= {
        "prefix_cache": draw(st.booleans()),
        "aging_seconds": draw(st.sampled_from([1.0, 30.0])),
        "itl_target_seconds": draw(st.sampled_from([0.0, 0.0, 0.02])),
    }
    try:
        return Choices(**values)  # type: ignore[arg-type]
    except ValueError:
        reject()


class SchedulerMachine(RuleBasedStateMachine):
    """One request after the other goes to a scheduler and its worker, and both to the next pair.

    `answers` is what the logs hold: the truth that requests must end with.
    """

    @initialize(
        num_blocks=st.integers(4, 12),
        block_size=st.integers(1, 4),
        max_running=st.integers(2, 6),
        spare_rows=st.integers(0, 3),
        max_step_tokens=st.integers(2, 12),
        depth=st.integers(1, 4),
        max_preemptions=st.integers(0, 3),
        num_host_blocks=st.integers(0, 12),
        choices=allowed_choices(),
    )
    def build(
        self,
        num_blocks: int,
        block_size: int,
        max_running: int,
        spare_rows: int,
        max_step_tokens: int,
        depth: int,
        max_preemptions: int,
        num_host_blocks: int,
        choices: Choices,
    ) -> None:
        capacity = num_blocks * block_size
        if choices.prefill != "chunked":
            max_step_tokens = max(max_step_tokens, capacity)
        self.memory = Memory(num_blocks, block_size, num_host_blocks)
        self.limits = Limits(
            max_step_tokens,
            max_running,
            depth,
            capacity,
            max_preemptions,
            max_running + spare_rows,
        )
        self.choices = choices
        self.shares = Shares()
        self.requests: dict[RequestId, Request] = {}
        self.answers: dict[RequestId, list[int]] = {}
        self.finishes: dict[RequestId, FinishReason] = {}  # that the worker marked
        self.failed: set[RequestId] = set()
        self.asked: dict[RequestId, tuple[FinishReason, int | None]] = {}  # ends from outside
        self.ended: dict[RequestId, Request] = {}
        self.away: list[Request] = []  # taken back, and not given to anybody yet
        self.start_worker()

    def start_worker(self) -> None:
        self.scheduler = Scheduler(self.limits, self.memory, self.choices, self.shares, b"key")
        self.worker = ShadowWorker(
            num_blocks=self.memory.num_blocks,
            block_size=self.memory.block_size,
            max_rows=self.limits.max_rows,
            max_step_tokens=self.limits.max_step_tokens,
            num_host_blocks=self.memory.num_host_blocks,
            contiguous=self.choices.kv == "reserved",
        )
        self.log: deque[StepResult] = deque()  # committed, not applied

    # --- what clients and operators do --------------------------------------------------------

    @rule(
        prompts=st.lists(st.integers(1, 8), min_size=1, max_size=3),
        family=st.integers(0, 3),
        n=st.integers(1, 2),
        max_tokens=st.integers(1, 24),
        ends=st.booleans(),
        tenant=st.sampled_from("ab"),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
    )
    def submit(
        self,
        prompts: list[int],
        family: int,
        n: int,
        max_tokens: int,
        ends: bool,
        tenant: str,
        priority: int,
    ) -> None:
        """Prompts of one family begin alike."""
        number = len(self.requests)
        submit = Submit(
            SubmissionId(f"s{number}"),
            tuple(tuple(100 * family + i for i in range(length)) for length in prompts),
            n,
            Sampling(seed=number),
            Ending(max_tokens, end_tokens=(END_TOKEN,) if ends else ()),
            GATEWAYS[0],
            tenant,
            priority,
        )
        for choice in range(submit.num_choices):
            request = Request.from_submit(submit, choice, float(len(self.requests)))
            if not self.scheduler.never_fits(request):
                self.requests[request.id] = request
                self.answers[request.id] = []
                self.scheduler.add(request)

    @precondition(lambda self: self.requests.keys() - self.ended.keys())
    @rule(data=st.data(), what=st.sampled_from(INTERFERENCES), number=st.integers(0, 5))
    def interfere(self, data: st.DataObject, what: str, number: int) -> None:
        """Something comes from outside for one request, whatever its state."""
        here = {request.id for request in self.away}
        open_ids = sorted(self.requests.keys() - self.ended.keys() - here)
        if not open_ids:
            return
        request = self.requests[data.draw(st.sampled_from(open_ids))]
        match what:
            case "hold":
                self.scheduler.hold(request.id)
                assert request.held or request.status is Status.FINISHED
            case "priority":
                self.scheduler.set_priority(request.id, number)
            case "gateways":
                self.scheduler.set_gateways(request.id, GATEWAYS[: number % 3])
            case "take_back":
                if self.scheduler.take_back(request.id):
                    assert request.id not in self.scheduler.requests
                    self.away.append(request)
            case "cancelled" | "stop" | "deadline":
                self.end(request, FinishReason(what), number)
            case _:
                self.simply(what, request)

    def simply(self, what: str, request: Request) -> None:
        core = self.scheduler
        {
            "add": lambda: core.add(request),
            "release": lambda: core.release(request.id),
            "drain": lambda: core.drain_tenant(request.tenant),
            "undrain": lambda: core.undrain_tenant(request.tenant),
        }[what]()

    @precondition(lambda self: self.away)
    @rule()
    def bring_back(self) -> None:
        """To this worker, though any would do."""
        self.scheduler.add(self.away.pop())

    def end(self, request: Request, reason: FinishReason, number: int) -> None:
        kept = number if reason is FinishReason.STOP else None
        if request.status is not Status.FINISHED:
            self.asked[request.id] = (reason, kept)
        self.scheduler.end(request.id, reason, kept=kept)
        assert request.status is Status.FINISHED

    # --- steps --------------------------------------------------------------------------------

    @rule()
    def make_plan(self) -> None:
        self.plan()

    def plan(self) -> StepPlan | None:
        could = self.scheduler.can_plan()
        rows = list(self.scheduler.running.rows)
        ready = [row for row in rows if not row.is_all_promised]
        decoding = [row for row in ready if row.num_pending == 1]
        plan = self.scheduler.schedule()
        last = self.scheduler.last
        if plan is None:
            assert not (could and decoding) or last.short
            return None
        assert could
        assert decode_plan(encode_plan(plan)) == plan, "not what the worker gets"
        self.worker.load(plan)
        displaced = {who for who, how in last.preempted if how is Reason.DISPLACED}
        for who in displaced:
            assert self.choices.policy == "priority"
            assert self.requests[who].priority > min(
                request.priority for request in self.scheduler.waiting
            )
        ready = [row for row in ready if row.id not in displaced]
        decoding = [row for row in decoding if row.id not in displaced]
        self.check_decision(plan, ready, decoding)
        return plan

    def check_decision(self, plan: StepPlan, ready: list[Request], decoding: list[Request]) -> None:
        last, pool = self.scheduler.last, self.scheduler.pool
        planned = {chunk.request_id for chunk in plan.chunks}
        started = {start.request_id for start in plan.admitted}
        if last.preempted or last.short:
            assert not plan.admitted, "somebody was admitted while others lack blocks"
        if self.choices.prefill != "chunked" and planned and planned == started:
            return  # a step of prompts alone
        assert not started or self.choices.prefill != "exclusive", "prompts beside decoding rows"
        if ready and ready[0].id not in planned:
            assert ready[0].id in last.short, "the oldest stands still"
            assert pool.num_expected > pool.num_free or self.scheduler.running.num_leaving, (
                "it waits for nothing"
            )
        starved = {row.id for row in decoding} - planned - {*last.short}
        starved -= {who for who, _ in last.preempted}
        assert not starved, "a prompt took what decoding rows need"
        for row in self.scheduler.running.rows:
            assert self.worker.rows[row.id].gateways == row.gateways

    @precondition(lambda self: self.worker.num_loaded)
    @rule(seed=st.integers(0, 1 << 20), fails=st.sampled_from([False, False, True]))
    def execute(self, seed: int, fails: bool = False) -> None:
        """The worker runs the next plan and commits it."""
        failing = sorted(self.worker.rows)[:1] if fails else ()

        def draw(request: RequestId, position: int) -> int:
            return (seed * 7919 + position * 31 + len(self.answers[request]) * 17) // 3 % 8

        plan_tokens = sum(row.num_pending for row in self.scheduler.running.rows)
        result = replace(self.worker.execute(draw, failing), seconds=0.01 + plan_tokens / 1e3)
        for token in result.sampled:
            answer = self.answers[token.request_id]
            assert token.position == len(answer), "a token was sampled twice"
            answer.append(token.token)
            if token.finish:
                self.finishes.setdefault(token.request_id, token.finish)
        self.failed.update(result.errors)
        self.log.append(result)

    @rule(seed=st.integers(0, 1 << 20), count=st.integers(2, 12))
    def go_on(self, seed: int, count: int) -> None:
        """As the service does: plans as far ahead as it may, and one result after the other."""
        for turn in range(count):
            while self.plan():
                check(self.scheduler)
            if self.worker.num_loaded:
                self.execute(seed=seed + turn)
            if self.log:
                self.apply()

    @precondition(lambda self: self.log)
    @rule(twice=st.booleans())
    def apply(self, twice: bool = False) -> None:
        result = self.log.popleft()
        got = [(request.id, request.tokens[-1]) for request in self.scheduler.apply(result)]
        assert got == [(token.request_id, token.token) for token in result.sampled]
        self.worker.answered(result.step)
        if twice:
            assert not self.scheduler.apply(result)

    @rule()
    def take_ended(self) -> None:
        for request in self.scheduler.take_ended():
            assert request.id not in self.ended, "a request ended twice"
            self.ended[request.id] = request
            self.check_end(request)

    def check_end(self, request: Request) -> None:
        answer = self.answers[request.id]
        assert request.tokens[request.num_prompt :] == answer, "not the tokens of the log"
        assert request.in_flight == request.num_promised == 0
        if request.id in self.asked:
            reason, kept = self.asked[request.id]
        elif request.id in self.failed:
            reason, kept = FinishReason.ERROR, None
            assert request.error == "broken"
        else:
            reason, kept = self.finishes[request.id], None
        assert request.finish_reason is reason
        assert request.kept == (len(answer) if kept is None else min(kept, len(answer)))

    @precondition(lambda self: self.scheduler.last.step > 4)
    @rule()
    def lose_worker(self) -> None:
        """Its log is closed and read to the end; its requests go to another one."""
        while self.log:
            self.apply()
        old = self.scheduler
        stranded = old.strand()
        self.take_ended()
        check(old)
        assert not old.requests
        assert old.pool.num_free == self.memory.num_blocks
        assert old.host.num_free == self.memory.num_host_blocks
        assert old.schedule() is None
        self.start_worker()
        for request in stranded:
            assert request.tokens[request.num_prompt :] == self.answers[request.id]
            assert request.status is Status.WAITING
            self.scheduler.add(request)

    @invariant()
    def holds(self) -> None:
        check(self.scheduler)
        self.look()

    def look(self) -> None:
        """Whatever the state, it can be shown; and to look at it changes nothing."""
        core = self.scheduler
        line, rows = core.line(1_000), core.rows()
        assert len(line) == len(core.waiting)
        assert len({seen.request_id for seen in (*line, *rows)}) == len(line) + len(rows)
        assert all(seen.reason for seen in line), "it waits, and nobody can say why"
        assert 0.0 <= core.predicted_wait() < 1e9
        assert core.backlog_tokens >= 0
        assert all(request.status is Status.WAITING for request in core.stealable(2))
        assert core.line(1_000) == line

    def let_go(self) -> None:
        while self.away:
            self.bring_back()
        for request in self.requests.values():
            self.scheduler.release(request.id)
        for tenant in "ab":
            self.scheduler.undrain_tenant(tenant)

    def teardown(self) -> None:
        """Left alone, everything finishes once, and every block comes home."""
        if not hasattr(self, "scheduler"):
            return
        self.let_go()
        for turn in range(5_000):
            while self.plan():
                check(self.scheduler)
            if not self.worker.num_loaded and not self.log:
                break
            if self.worker.num_loaded:
                self.execute(seed=turn)
            self.apply()
            check(self.scheduler)
        self.take_ended()
        assert not self.scheduler.requests, "somebody waits for ever"
        assert self.ended.keys() == self.requests.keys()
        assert self.scheduler.pool.num_free == self.memory.num_blocks
        assert self.scheduler.host.num_free == self.memory.num_host_blocks
        assert not self.worker.rows, "a row was never released"
        assert not self.scheduler.cache or not self.scheduler.cache.computing


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=120,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestScheduler.pytestmark = [pytest.mark.timeout(300)]
