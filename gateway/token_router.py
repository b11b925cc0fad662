"""One pub/sub channel for each gateway process, fanned out to the answers that are open.

Pub/sub is the fast path and may lose anything. A jump in the positions, a subscription that began
anew, or silence sends a request to repair, which reads it back from log and journal. An answer that
began elsewhere is joined: ATTACH, and a repair fills it from its start.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence

from common.bus import GatewayBus, UnavailableError
from common.messages import (
    Control,
    ControlKind,
    Ended,
    GatewayId,
    Journal,
    Notice,
    RequestId,
    SubmissionId,
    Submit,
    Subscribed,
    TokenBatch,
    submission_of,
)
from common.metrics import GatewayMetrics
from gateway.answer import Answer
from gateway.control_sender import ControlSender
from gateway.errors import ApiError
from gateway.routes import RepairQueue, Route

WATCH_SECONDS = 0.25
SUBSCRIBE_SECONDS = 5.0  # how long a request waits for the first subscription
ORPHAN_SECONDS = 10.0  # tokens of a request that was left are no surprise for so long
MAX_LEFT = 10_000  # submissions remembered as left


class TokenRouter:
    """`run` until cancelled; meanwhile `open` an answer for each request."""

    def __init__(self, bus: GatewayBus, gateway: GatewayId, metrics: GatewayMetrics) -> None:
        self.bus = bus
        self.gateway = gateway
        self.metrics = metrics
        self.controls = ControlSender(bus)
        self.repairs = RepairQueue(bus, metrics)
        self._answers: dict[SubmissionId, list[Answer]] = {}  # one for each client
        self._routes: dict[RequestId, list[Route]] = {}
        self._subscribed = asyncio.Event()
        self._one_over = asyncio.Event()
        self._left: OrderedDict[SubmissionId, float] = OrderedDict()  # -> when it was told so

    @property
    def num_open(self) -> int:
        """Answers that clients wait for."""
        return sum(map(len, self._answers.values()))

    @property
    def is_subscribed(self) -> bool:
        return self._subscribed.is_set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(), name="gateway.listen")
            tasks.create_task(self._watch(), name="gateway.watch")
            tasks.create_task(self.repairs.run(), name="gateway.repair")
            tasks.create_task(self.controls.run(), name="gateway.controls")

    @contextlib.asynccontextmanager
    async def open(
        self, submit: Submit, *, in_turn: bool = False, joins: bool = False
    ) -> AsyncIterator[Answer]:
        """Submit the request; its answer, while the body runs. Left early, it is cancelled.

        One that is resumable is detached instead. `joins`: another gateway may have submitted it
        as well, and that one may count, so it is attached.

        The cleanup awaits nothing: when a client leaves it may run inside a cancelled task, where
        every await would raise. A submit that the bus did not confirm may have landed all the
        same, so it is cancelled too. Raises BusError.
        """
        await self._wait_for_subscription()
        answer = Answer(submit.submission_id, submit.num_choices, in_turn=in_turn)
        self._register(answer)
        try:
            await self.bus.submit(submit)
            if joins:
                self._attach(answer)
            yield answer
        finally:
            is_kept = submit.resumable
            self._unregister(answer, ControlKind.DETACH if is_kept else ControlKind.CANCEL)

    @contextlib.asynccontextmanager
    async def join(
        self, submission: SubmissionId, journals: Sequence[Journal], *, in_turn: bool = False
    ) -> AsyncIterator[Answer]:
        """The answer to a request that was accepted before, from its start, while the body runs.

        `journals`: of all its choices, as they were seen. Left early, it is detached, and goes on
        as long as it would without this client; cleanup as in `open`. Raises BusError.
        """
        await self._wait_for_subscription()
        answer = Answer(submission, len(journals), in_turn=in_turn)
        for choice, journal in zip(answer.choices, journals, strict=True):
            if journal.head is not None:
                choice.expect_journal()
        now = time.monotonic()
        self._register(answer)
        try:
            if not all(journal.end for journal in journals):
                self._attach(answer)
            for route in self._routes_of(answer):
                self.repairs.want(route, now)
            yield answer
        finally:
            self._unregister(answer, ControlKind.DETACH)

    def stop(self, answer: Answer, index: int, kept: int) -> None:
        """End one choice with `kept` tokens: a stop string was found. Repeated, it does nothing."""
        choice = answer.choices[index]
        if not choice.is_stopped:
            is_running = not choice.is_complete
            choice.stop()
            if is_running:
                self.controls.send(Control(ControlKind.STOP, choice.request, kept=kept))

    async def all_over(self) -> None:
        """Wait until no answer is open."""
        while self._answers:
            self._one_over.clear()
            await self._one_over.wait()

    def fail_all(self, error: ApiError) -> None:
        """End all open answers with an error."""
        for answers in self._answers.values():
            for answer in answers:
                answer.fail(error)

    async def _wait_for_subscription(self) -> None:
        try:
            async with asyncio.timeout(SUBSCRIBE_SECONDS):
                await self._subscribed.wait()
        except TimeoutError:
            raise UnavailableError("the subscription does not stand") from None

    def _register(self, answer: Answer) -> None:
        self._answers.setdefault(answer.submission, []).append(answer)
        self.metrics.open_answers.set(self.num_open)
        now = time.monotonic()
        for index, choice in enumerate(answer.choices):
            self._routes.setdefault(choice.request, []).append(Route(answer, index, now))

    def _attach(self, answer: Answer) -> None:
        attach = Control(ControlKind.ATTACH, answer.submission, gateway=self.gateway)
        self.controls.send(attach)

    def _routes_of(self, answer: Answer) -> list[Route]:
        routes = [route for choice in answer.choices for route in self._routes[choice.request]]
        return [route for route in routes if route.answer is answer]

    def _unregister(self, answer: Answer, farewell: ControlKind) -> None:
        """The client needs no more; the last one of this gateway says so to the scheduler."""
        answer.close()
        for route in self._routes_of(answer):
            self.repairs.forget(route)
            self._routes[route.choice.request].remove(route)
            if not self._routes[route.choice.request]:
                del self._routes[route.choice.request]
        self._answers[answer.submission].remove(answer)
        if not self._answers[answer.submission]:
            del self._answers[answer.submission]
            if answer.runs_on:
                self._leave(answer.submission, farewell, time.monotonic())
        self.metrics.open_answers.set(self.num_open)
        self._one_over.set()

    def _leave(self, submission: SubmissionId, farewell: ControlKind, now: float) -> None:
        self._left[submission] = now
        self._left.move_to_end(submission)
        if len(self._left) > MAX_LEFT:
            self._left.popitem(last=False)
        if farewell is ControlKind.DETACH:
            self.controls.send(Control(farewell, submission, gateway=self.gateway))
        else:
            self.controls.send(Control(farewell, submission))

    async def _listen(self) -> None:
        async for notice in self.bus.notices(self.gateway):
            self.receive(notice, time.monotonic())

    def receive(self, notice: Notice, now: float) -> None:
        """Take one notice in. Repeated or out of order, it changes nothing that was shown."""
        if isinstance(notice, TokenBatch):
            for sampled in notice.sampled:
                if (routes := self._routes.get(sampled.request_id)) is None:
                    self._leave_orphan(submission_of(sampled.request_id), now)
                    continue
                for route in routes:
                    route.choice.add(sampled.position, sampled.token)
                    self._hear(route, now)
        elif isinstance(notice, Ended):
            for route in self._routes.get(notice.request_id, ()):
                route.choice.finish(notice)
                self._hear(route, now)
        else:
            assert isinstance(notice, Subscribed)
            self._subscribed.set()
            for route in self._all_routes():
                self.repairs.want(route, now)

    def _all_routes(self) -> Iterator[Route]:
        for routes in self._routes.values():
            yield from routes

    def _hear(self, route: Route, now: float) -> None:
        route.hear(now)
        if route.choice.wants_repair and not route.in_repair:
            self.repairs.want(route, now)

    def _leave_orphan(self, submission: SubmissionId, now: float) -> None:
        """Tokens come that nobody waits for, long after the request was left, if it ever was here.

        So it is when a cancel overtook its submit, or a submit landed that seemed to have failed.
        A detach is enough: whoever else shows it goes on, and what nobody shows is cancelled.
        """
        if now - self._left.get(submission, float("-inf")) > ORPHAN_SECONDS:
            self.metrics.orphans.inc()
            self._leave(submission, ControlKind.DETACH, now)

    async def _watch(self) -> None:
        """Look for requests that nothing is heard of, and for clients that read again."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = time.monotonic()
            for route in self._all_routes():
                if not route.in_repair and (route.choice.wants_repair or route.is_silent(now)):
                    self.repairs.want(route, now)
