"""One pub/sub channel for each gateway process, fanned out to the answers that are open.

Pub/sub is the fast path and may lose anything. A jump in the positions, a subscription that began
anew, or silence sends a request to repair, which reads it back from log and journal. To take over
an answer that began elsewhere: register it, ATTACH, and let a repair fill it from 0.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator

from common.bus import GatewayBus, UnavailableError
from common.messages import (
    Control,
    ControlKind,
    Ended,
    GatewayId,
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
        self._answers: dict[SubmissionId, Answer] = {}
        self._routes: dict[RequestId, Route] = {}
        self._subscribed = asyncio.Event()
        self._one_over = asyncio.Event()
        self._left: OrderedDict[SubmissionId, float] = OrderedDict()  # -> when it was cancelled

    @property
    def num_open(self) -> int:
        return len(self._answers)

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
    async def open(self, submit: Submit) -> AsyncIterator[Answer]:
        """Submit the request; its answer, while the body runs. Left early, it is cancelled.

        The cleanup awaits nothing: when a client leaves it may run inside a cancelled task, where
        every await would raise. A submit that the bus did not confirm may have landed all the
        same, so it is cancelled too. Raises BusError.
        """
        await self._wait_for_subscription()
        answer = self._register(submit)
        try:
            await self.bus.submit(submit)
            yield answer
        finally:
            self._unregister(answer)

    def stop(self, answer: Answer, index: int, kept: int) -> None:
        """End one choice with `kept` tokens: a stop string was found. Repeated, it does nothing."""
        choice = answer.choices[index]
        if not choice.is_stopped and not choice.is_complete:
            choice.stop()
            self.controls.send(Control(ControlKind.STOP, choice.request, kept=kept))

    async def all_over(self) -> None:
        """Wait until no answer is open."""
        while self._answers:
            self._one_over.clear()
            await self._one_over.wait()

    def fail_all(self, error: ApiError) -> None:
        """End all open answers with an error."""
        for answer in self._answers.values():
            answer.fail(error)

    async def _wait_for_subscription(self) -> None:
        try:
            async with asyncio.timeout(SUBSCRIBE_SECONDS):
                await self._subscribed.wait()
        except TimeoutError:
            raise UnavailableError("the subscription does not stand") from None

    def _register(self, submit: Submit) -> Answer:
        assert submit.submission_id not in self._answers, "an id is used once"
        answer = self._answers[submit.submission_id] = Answer(submit)
        self.metrics.open_answers.set(len(self._answers))
        now = time.monotonic()
        for index, choice in enumerate(answer.choices):
            self._routes[choice.request] = Route(answer, index, now)
        return answer

    def _unregister(self, answer: Answer) -> None:
        answer.is_closed = True
        submission = answer.submit.submission_id
        del self._answers[submission]
        self.metrics.open_answers.set(len(self._answers))
        self._one_over.set()
        for choice in answer.choices:
            self.repairs.forget(self._routes.pop(choice.request))
        if answer.runs_on:
            self._cancel(submission, time.monotonic())

    def _cancel(self, submission: SubmissionId, now: float) -> None:
        self._left[submission] = now
        self._left.move_to_end(submission)
        if len(self._left) > MAX_LEFT:
            self._left.popitem(last=False)
        self.controls.send(Control(ControlKind.CANCEL, submission))

    async def _listen(self) -> None:
        async for notice in self.bus.notices(self.gateway):
            self.receive(notice, time.monotonic())

    def receive(self, notice: Notice, now: float) -> None:
        """Take one notice in. Repeated or out of order, it changes nothing that was shown."""
        if isinstance(notice, TokenBatch):
            for sampled in notice.sampled:
                if (route := self._routes.get(sampled.request_id)) is not None:
                    route.choice.add(sampled.position, sampled.token)
                    self._hear(route, now)
                else:
                    self._cancel_orphan(submission_of(sampled.request_id), now)
        elif isinstance(notice, Ended):
            if (route := self._routes.get(notice.request_id)) is not None:
                route.choice.finish(notice)
                self._hear(route, now)
        else:
            assert isinstance(notice, Subscribed)
            self._subscribed.set()
            for route in self._routes.values():
                self.repairs.want(route, now)

    def _hear(self, route: Route, now: float) -> None:
        route.hear(now)
        if route.choice.wants_repair and not route.in_repair:
            self.repairs.want(route, now)

    def _cancel_orphan(self, submission: SubmissionId, now: float) -> None:
        """Tokens come that nobody waits for, long after the request was left, if it ever was here.

        So it is when a cancel overtook its submit, or a submit landed that seemed to have failed.
        """
        if now - self._left.get(submission, float("-inf")) > ORPHAN_SECONDS:
            self.metrics.orphans.inc()
            self._cancel(submission, now)

    async def _watch(self) -> None:
        """Look for requests that nothing is heard of, and for clients that read again."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = time.monotonic()
            for route in self._routes.values():
                if not route.in_repair and (route.choice.wants_repair or route.is_silent(now)):
                    self.repairs.want(route, now)
