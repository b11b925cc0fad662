"""A client: asks for one answer after the other, leaves some, and comes back to those cut off."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from cli.bench.http import ExchangeError, Server, exchange
from common.messages import SubmissionId
from tests.chaos.answer import Answer, Wish
from tests.chaos.wishes import Draw, Wishes

SILENCE_SECONDS = 6.0  # without a byte, keep-alive comments among them, it looks elsewhere
WHOLE_SECONDS = 30.0  # the same for answers that are not streamed, where nothing comes before all
PASSING = {"shutting_down"}  # of the gateway alone: another one goes on
BUSY = {429, 503}


class LeftError(Exception):
    """The client has seen enough."""


class Client:
    def __init__(
        self,
        number: int,
        rng: random.Random,
        ports: Sequence[int],
        wishes: Wishes,
        draw: Draw,
        cancel: Callable[[SubmissionId], None],
    ) -> None:
        """`cancel` asks an operator."""
        self.answers: list[Answer] = []
        self._name = f"client {number}"
        self._rng = rng
        self._ports = ports
        self._wishes = wishes
        self._draw = draw
        self._cancel = cancel

    async def run(self, enough: asyncio.Event, most: int | None) -> None:
        """Until there is enough, or there are as many, and the last answer is over."""
        while not enough.is_set() and (most is None or len(self.answers) < most):
            key = f"{self._name} {len(self.answers)} {self._rng.random()}"
            wish = self._draw(self._rng, key)
            truth = self._wishes.truth(wish)
            answers = [Answer(wish, truth, time.monotonic) for _ in range(wish.num_posts)]
            self.answers += answers
            async with asyncio.TaskGroup() as tasks:
                for answer in answers:
                    tasks.create_task(self._pursue(answer), name=self._name)
            streams = {answer.stream for answer in answers if answer.stream}
            answers[0].check(len(streams) <= 1, f"one key, and {streams}")

    async def _pursue(self, answer: Answer) -> None:
        if answer.wish.num_posts > 1:
            await asyncio.sleep(self._rng.uniform(0.0, 1.0))
        while answer.outcome == "unfinished":
            answer.outcome = await self._connect(answer)
            answer.over_at = time.monotonic()
            await asyncio.sleep(self._rng.uniform(0.02, 0.2))

    async def _connect(self, answer: Answer) -> str:
        """One connection; how the answer ended with it, if it did."""
        answer.connect()
        try:
            status = await self._exchange(answer)
        except LeftError:
            return "left"
        except (ExchangeError, OSError, TimeoutError):
            return self._cut(answer)
        if status == 200 and not answer.wish.streams:
            answer.take_whole()
        if answer.is_done:
            return "whole"
        return self._unanswered(answer, status)

    def _unanswered(self, answer: Answer, status: int) -> str:
        if status in BUSY or answer.error in PASSING:
            return self._cut(answer)
        if status == 200 and not answer.error:
            answer.check(False, "a stream without an end")
        if answer.wish.cancels_after and answer.error == "cancelled":
            return "cancelled"
        return f"failed: {answer.error or answer.refused_with()}"

    def _cut(self, answer: Answer) -> str:
        """A stream that was begun is cut; of what had no answer nobody knows whether it exists."""
        if answer.wish.key:
            return "unfinished"
        return "cut" if answer.stream else "unanswered"

    async def _exchange(self, answer: Answer) -> int:
        loop = asyncio.get_running_loop()
        seconds = SILENCE_SECONDS if answer.wish.streams else WHOLE_SECONDS
        async with asyncio.timeout(seconds) as patience:

            def take(data: bytes) -> None:
                patience.reschedule(loop.time() + seconds)
                had = len(answer.times)
                answer.feed(data)
                if had < answer.wish.cancels_after <= len(answer.times):
                    self._cancel(SubmissionId(answer.stream.partition("-")[2]))
                if 0 < answer.wish.leaves_after <= len(answer.times):
                    raise LeftError

            return await exchange(*self._request(answer), take)

    def _request(self, answer: Answer) -> tuple[Server, bytes]:
        """POST, or where the stream is known one of the two ways to go on with it."""
        wish: Wish = answer.wish
        headers = {"Idempotency-Key": wish.key} if wish.key else {}
        if answer.last_event:
            headers["Last-Event-ID"] = answer.last_event
        server = Server("127.0.0.1", self._rng.choice(self._ports), False, "", headers)
        if answer.stream and self._rng.random() < 0.5:
            return server, server.request("GET", f"/v1/streams/{answer.stream}")
        return server, server.request("POST", wish.path, wish.body(self._wishes.model))
