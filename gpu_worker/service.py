"""The shell of the worker: plans in, results out. The bus on one thread, the engine on another.

A life under one name ends when the scheduler has given the worker up (its log is closed, its field
is gone): all rows are dropped, and the next life begins under a new name.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import replace

import structlog

from common.bus import Commit, WorkerBus
from common.messages import StepPlan, WorkerHello, WorkerId
from gpu_worker.engine import Engine
from gpu_worker.engine_thread import Deliver, EngineThread, Outcome, Runner
from gpu_worker.viewers import Viewers

log = structlog.get_logger()

BLOCK_SECONDS = 1.0


class GivenUpError(Exception):
    """The scheduler closed this worker's log: what it still computes counts for nothing."""


class WorkerService:
    def __init__(
        self,
        bus: WorkerBus,
        engine: Engine,
        host: str,
        beat_seconds: float,
        drain_seconds: float = 0.0,
        announce: Callable[[WorkerId], None] = lambda _name: None,
        runner: Callable[[Engine, Deliver], Runner] = EngineThread,
    ) -> None:
        self.bus = bus
        self.engine = engine
        self.host = host
        self.beat_seconds = beat_seconds
        self.drain_seconds = drain_seconds
        self.announce = announce  # the name of each life, before it is registered
        self.runner = runner
        self.leaving = asyncio.Event()

    def leave(self) -> None:
        """Ask the scheduler to move all rows elsewhere; `run` returns when it has."""
        self.leaving.set()

    async def run(self) -> None:
        """Live under one name after the other, until told to leave."""
        while not self.leaving.is_set():
            hello = self._hello()
            self.engine.reset()
            self.announce(hello.worker_id)
            await _Life(self, hello).run()

    def _hello(self) -> WorkerHello:
        capacity = self.engine.capacity
        return WorkerHello(
            worker_id=WorkerId(f"{self.host}-{secrets.token_hex(4)}"),
            model=capacity.model,
            device=capacity.device,
            num_blocks=capacity.num_blocks,
            block_size=capacity.block_size,
            max_request_tokens=capacity.max_request_tokens,
            max_step_tokens=capacity.max_step_tokens,
            max_rows=capacity.max_rows,
            num_host_blocks=capacity.num_host_blocks,
        )


class _Life:
    """From one registration until the log is closed."""

    def __init__(self, service: WorkerService, hello: WorkerHello) -> None:
        self.service = service
        self.bus = service.bus
        self.hello = hello
        self.name = hello.worker_id
        self.viewers = Viewers()
        self.results: asyncio.Queue[tuple[StepPlan, Outcome]] = asyncio.Queue()
        self.failed = ""  # by what exception
        self.hurry = asyncio.Event()  # the next beat has news

    async def run(self) -> None:
        await self.bus.register(self.hello)
        log.info("registered", worker=self.name)
        runner = self.service.runner(self.service.engine, self._take)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._beat(runner), name="worker.beat")
                tasks.create_task(self._read(runner), name="worker.read")
                tasks.create_task(self._commit(), name="worker.commit")
                tasks.create_task(self._leave(), name="worker.leave")
        except* GivenUpError as given_up:
            log.warning("given up", worker=self.name, why=str(given_up.exceptions[0]))
        finally:
            await runner.stop()

    def _take(self, plan: StepPlan, outcome: Outcome) -> None:
        self.results.put_nowait((plan, outcome))

    async def _read(self, runner: Runner) -> None:
        last = 0
        while True:
            news = await self.bus.read_plans(self.name, last, BLOCK_SECONDS)
            for plan in news.plans:
                assert plan.step == last + 1, f"plan {plan.step} after {last}"
                last = plan.step
                runner.put(plan)
            if news.closed:
                raise GivenUpError("its plans are closed")

    async def _commit(self) -> None:
        """One outstanding at a time, while the next step computes."""
        while True:
            plan, outcome = await self.results.get()
            if isinstance(outcome, Exception):
                self._fail(plan, outcome)
                continue
            self.viewers.follow(plan)
            batches = self.viewers.batches(outcome.sampled)
            if await self.bus.commit(self.name, outcome, batches) is Commit.CLOSED:
                raise GivenUpError("its log is closed")

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        """Say so with the next beat. The scheduler closes the log, and the rows go elsewhere."""
        log.error("a step failed", worker=self.name, step=plan.step, exc_info=error)
        self.failed = f"{type(error).__name__} in step {plan.step}"
        self.hurry.set()

    async def _beat(self, runner: Runner) -> None:
        beat, step, beats = 0, 0, 0
        while True:
            beat += 1
            beats = beats + 1 if runner.step == step else 0
            step = runner.step
            is_leaving = bool(self.failed) or self.service.leaving.is_set()
            hello = replace(
                self.hello,
                beat=beat,
                step=step,
                step_beats=beats,
                leaving=is_leaving,
                failed=self.failed,
            )
            if not await self.bus.beat(hello):
                raise GivenUpError("its field is gone")
            self.hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.service.beat_seconds):
                    await self.hurry.wait()

    async def _leave(self) -> None:
        """The scheduler closes the log of a worker that leaves; without one, nothing is lost."""
        await self.service.leaving.wait()
        self.hurry.set()
        await asyncio.sleep(self.service.beat_seconds)  # for a plan that is under way
        if self.viewers.num_rows:
            await asyncio.sleep(self.service.drain_seconds)
            raise GivenUpError("nobody took its rows in time")
        raise GivenUpError("it has no rows")
