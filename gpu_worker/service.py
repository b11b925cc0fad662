"""The shell of the worker: plans in, results out. The bus on one thread, the engine on another.

A life under one name ends when the scheduler has given the worker up (its log is closed, its field
is gone): all rows are dropped, and the next life begins under a new name.
"""

import asyncio
import contextlib
import queue
import secrets
import threading
import time
from dataclasses import replace

import structlog

from common.bus import Commit, WorkerBus
from common.messages import StepPlan, StepResult, WorkerHello, WorkerId
from gpu_worker.engine import Engine
from gpu_worker.viewers import Viewers

log = structlog.get_logger()

BLOCK_SECONDS = 1.0
MAX_PLANS = 16  # read ahead; a scheduler plans fewer


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
    ) -> None:
        self.bus = bus
        self.engine = engine
        self.host = host
        self.beat_seconds = beat_seconds
        self.drain_seconds = drain_seconds
        self.leaving = asyncio.Event()

    def leave(self) -> None:
        """Ask the scheduler to move all rows elsewhere; `run` returns when it has."""
        self.leaving.set()

    async def run(self) -> None:
        """Live under one name after the other, until told to leave."""
        while not self.leaving.is_set():
            self.engine.reset()
            await _Life(self, self._hello()).run()

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
        )


class _Life:
    """From one registration until the log is closed."""

    def __init__(self, service: WorkerService, hello: WorkerHello) -> None:
        self.service = service
        self.bus = service.bus
        self.engine = service.engine
        self.hello = hello
        self.name = hello.worker_id
        self.viewers = Viewers()
        self.plans: queue.Queue[StepPlan | None] = queue.Queue(MAX_PLANS)
        self.results: asyncio.Queue[tuple[StepPlan, StepResult | Exception]] = asyncio.Queue()
        self.step = 0  # that the engine computes now
        self.failed = ""  # by what exception
        self.hurry = asyncio.Event()  # the next beat has news

    async def run(self) -> None:
        await self.bus.register(self.hello)
        log.info("registered", worker=self.name)
        thread = threading.Thread(
            target=self._compute, args=(asyncio.get_running_loop(),), name="engine", daemon=True
        )
        thread.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._beat(), name="worker.beat")
                tasks.create_task(self._read(), name="worker.read")
                tasks.create_task(self._commit(), name="worker.commit")
                tasks.create_task(self._leave(), name="worker.leave")
        except* GivenUpError as given_up:
            log.warning("given up", worker=self.name, why=str(given_up.exceptions[0]))
        finally:
            await self._stop(thread)

    def _compute(self, loop: asyncio.AbstractEventLoop) -> None:
        """The engine's thread: one plan after the other, with no turn of the loop in between.

        A step that fails is the last: no later one may be committed without it.
        """
        while (plan := self.plans.get()) is not None:
            self.step = plan.step
            outcome: StepResult | Exception
            try:
                outcome = self.engine.execute(plan)
            except Exception as error:  # noqa: BLE001 - raised again on the loop, by `_commit`
                outcome = error
            self.step = 0
            with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits for it
                loop.call_soon_threadsafe(self.results.put_nowait, (plan, outcome))
            if isinstance(outcome, Exception):
                return

    async def _read(self) -> None:
        last = 0
        while True:
            news = await self.bus.read_plans(self.name, last, BLOCK_SECONDS)
            for plan in news.plans:
                assert plan.step == last + 1, f"plan {plan.step} after {last}"
                last = plan.step
                self.plans.put_nowait(plan)
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

    async def _beat(self) -> None:
        beat, step, beats = 0, 0, 0
        while True:
            beat += 1
            beats = beats + 1 if self.step == step else 0
            step = self.step
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
        await asyncio.sleep(self.service.drain_seconds)
        raise GivenUpError("nobody took its rows in time")

    async def _stop(self, thread: threading.Thread) -> None:
        """Let the engine end the step that it computes; plans behind it are dropped."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.plans.get_nowait()
        self.plans.put_nowait(None)
        started = time.monotonic()
        while thread.is_alive():
            await asyncio.sleep(0.01)
            if time.monotonic() - started > 60.0:
                raise RuntimeError("the engine does not end its step")
