"""A leader and workers that check what they are told, and a picture of what stands in Redis.

The picture knows the stories: journals are contiguous, each token is committed to the log of its
request's owner, an owner changes only when the journal has all that the log before had, and nobody
is planned on two workers at a time.
"""

from dataclasses import replace
from typing import Any

import orjson

from common.bus import (
    AddTimeline,
    Log,
    News,
    Outcome,
    SetOwner,
    Write,
    WriteEnd,
    WritePlan,
    WriteTokens,
)
from common.messages import (
    Control,
    ControlKind,
    Ended,
    Ending,
    GatewayId,
    RequestId,
    Sampling,
    SubmissionId,
    Submit,
    WorkerHello,
    WorkerId,
    request_id,
)
from scheduler.core.invariants import check
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.core.shares import Shares
from scheduler.core.strategies import Choices
from scheduler.fleet import Fleet, Worker
from scheduler.leader import Leader
from scheduler.ledger import Ledger
from tests.doubles import ShadowWorker

STEP_SECONDS = 0.01


def truth(request: RequestId, position: int) -> int:
    """The token at a position of its answer, whoever computes it."""
    return 10 + (sum(request.encode()) + 7 * position) % 90


class Pool:
    def __init__(
        self,
        *workers: str,
        num_blocks: int = 32,
        block_size: int = 4,
        max_running: int = 4,
        max_step_tokens: int = 32,
        depth: int = 1,
        num_host_blocks: int = 0,
        **choices: Any,
    ) -> None:
        self.hello = WorkerHello(
            *(WorkerId("w"), "m", "cpu", num_blocks, block_size, 100, max_step_tokens),
            max_rows=max_running,
            num_host_blocks=num_host_blocks,
        )
        self.depth = depth
        self.choices = Choices(**choices)
        self.shares = Shares()
        fleet = Fleet(self._build_core, beat_seconds=1e9, step_seconds=1e9)
        self.leader = Leader(fleet, Ledger(60), 1000, self.shares)
        self.now = 100.0
        self.shadows: dict[WorkerId, ShadowWorker] = {}
        self.planned: dict[WorkerId, list[set[RequestId]]] = {}  # by plans that are not executed
        self.prompts: dict[RequestId, tuple[tuple[int, ...], int]] = {}
        self.journals: dict[RequestId, list[int]] = {}
        self.logs: dict[WorkerId, dict[RequestId, int]] = {}  # tokens of each that exist
        self.owners: dict[RequestId, WorkerId] = {}
        self.ended: dict[RequestId, Ended] = {}
        self.timeline: list[dict[str, Any]] = []
        self.entries = 0
        for name in workers:
            self.join(name)

    def _build_core(self, hello: WorkerHello) -> Scheduler:
        most = hello.max_request_tokens
        limits = Limits(hello.max_step_tokens, hello.max_rows, self.depth, most)
        memory = Memory(hello.num_blocks, hello.block_size, hello.num_host_blocks)
        return Scheduler(limits, memory, self.choices, self.shares, b"key")

    # --- What happens -------------------------------------------------------------------------

    def join(self, name: str, **changes: Any) -> None:
        worker_id, fleet = WorkerId(name), self.leader.fleet
        hello = replace(self.hello, worker_id=worker_id, **changes)
        fleet.watch({w.id: w.hello for w in fleet.workers.values()} | {worker_id: hello}, self.now)
        fleet.open(worker_id)
        self.shadows[worker_id] = ShadowWorker(
            num_blocks=hello.num_blocks,
            block_size=hello.block_size,
            max_rows=hello.max_rows,
            max_step_tokens=hello.max_step_tokens,
            num_host_blocks=hello.num_host_blocks,
            contiguous=self.choices.kv == "reserved",
        )
        self.planned[worker_id], self.logs[worker_id] = [], {}
        self.leader.watched()

    def submit(
        self, name: str, prompt: int | tuple[int, ...] = 8, max_tokens: int = 8, **changes: Any
    ) -> RequestId:
        """`prompt`: so many tokens that no other request has, or these."""
        request = request_id(SubmissionId(name), 0)
        if isinstance(prompt, int):
            first = 1000 * (len(self.prompts) + 1)
            prompt = tuple(range(first, first + prompt))
        submit = Submit(
            SubmissionId(name),
            (prompt,),
            1,
            Sampling(seed=1),
            Ending(max_tokens=max_tokens),
            GatewayId("g"),
        )
        submit = replace(submit, **changes)
        for each in submit.request_ids():
            self.prompts[each] = (prompt, max_tokens)
            self.journals[each] = []
        self.entries += 1
        self.leader.receive(News(submits=((f"{self.entries}-0", submit),)), self.now)
        self.leader.joined([Outcome.OK] * len(self.leader.heads()), self.now)
        return request

    def control(self, kind: ControlKind, target: str, **changes: Any) -> None:
        self.entries += 1
        control = (f"{self.entries}-0", Control(kind, target, **changes))
        self.leader.receive(News(controls=(control,)), self.now)

    def act(self) -> None:
        for write in self.leader.act(self.now):
            self._apply(write)
        for worker in self.leader.fleet.workers.values():
            check(worker.core)

    def compute(self, name: str) -> bool:
        """The next step of a worker, and the leader hears of it. False: it has none."""
        worker_id = WorkerId(name)
        shadow = self.shadows[worker_id]
        if not shadow.num_loaded:
            return False
        self.now += STEP_SECONDS
        self.planned[worker_id].pop(0)
        result = replace(shadow.execute(truth), seconds=STEP_SECONDS)
        for token in result.sampled:
            assert self.owners[token.request_id] == worker_id, "committed to a log of no account"
            self.logs[worker_id][token.request_id] = token.position + 1
        self.leader.receive(News(results={worker_id: (result,)}), self.now)
        shadow.answered(result.step)
        return True

    def bury(self, name: str) -> None:
        """The worker dies: what it has not told is lost."""
        worker_id = WorkerId(name)
        del self.shadows[worker_id]
        self.planned[worker_id].clear()
        for write in self.leader.bury(worker_id, Log(), died=True, now=self.now):
            self._apply(write)

    def turn(self, *names: str) -> None:
        """One step of each worker, or of these."""
        for name in names or list(self.shadows):
            self.compute(name)
        self.act()

    def run(self, turns: int = 500) -> None:
        """Until all that can go on has ended."""
        for _ in range(turns):
            self.turn()
            if not any(shadow.num_loaded for shadow in self.shadows.values()):
                return
        raise AssertionError("it never comes to an end")

    # --- What is to be seen -------------------------------------------------------------------

    def worker(self, name: str) -> Worker:
        return self.leader.fleet.workers[WorkerId(name)]

    def where(self, request: RequestId) -> WorkerId | None:
        return self.leader.ledger.accounts[request].worker

    def running(self, name: str) -> list[RequestId]:
        return [row.id for row in self.worker(name).core.running.rows]

    def waiting(self, name: str) -> list[RequestId]:
        return [request.id for request in self.worker(name).core.waiting]

    def check_answers(self) -> None:
        """Each has ended once, with all its tokens."""
        assert self.ended.keys() == self.prompts.keys()
        for request, (_, max_tokens) in self.prompts.items():
            expected = [truth(request, position) for position in range(max_tokens)]
            assert self.journals[request] == expected

    # --- The picture --------------------------------------------------------------------------

    def _apply(self, write: Write) -> None:
        match write:
            case WriteTokens(request, total, tokens):
                assert total - len(tokens) == len(self.journals[request]), "a hole in a journal"
                self.journals[request] += tokens
            case WriteEnd(total, end, _):
                assert total == len(self.journals[end.request_id])
                assert end.request_id not in self.ended, "ended twice"
                self.ended[end.request_id] = end
            case SetOwner(request, worker_id):
                before = self.owners.get(request)
                known = self.logs[before].get(request, 0) if before else 0
                assert known <= len(self.journals[request]), "tokens that nobody will find"
                self.owners[request] = worker_id
            case WritePlan(worker_id, plan):
                members = {chunk.request_id for chunk in plan.chunks}
                for other, plans in self.planned.items():
                    elsewhere = set().union(*plans) if other != worker_id else set()
                    assert not members & elsewhere, "planned on two workers"
                self.planned[worker_id].append(members)
                self.shadows[worker_id].load(plan)
            case AddTimeline(_, value):
                self.timeline.append(orjson.loads(value))
