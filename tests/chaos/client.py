"""A client: asks for one answer after the other, leaves some, and comes back to those cut off."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from cli.bench_http import ExchangeError, Server, exchange
from tests.chaos.answer import Answer, Truth, Wish

PATH = "/v1/completions"
SILENCE_SECONDS = 6.0  # without a byte, keep-alive comments among them, it looks elsewhere
PASSING = {"shutting_down"}  # of the gateway alone: another one goes on
BUSY = {429, 503}
VOCABULARY = range(1000, 9000)  # ordinary words


class LeftError(Exception):
    """The client has seen enough."""


class Client:
    def __init__(
        self,
        number: int,
        rng: random.Random,
        ports: Sequence[int],
        model: str,
        token_bytes: Callable[[int], bytes],
    ) -> None:
        self.answers: list[Answer] = []
        self._name = f"client {number}"
        self._rng = rng
        self._ports = ports
        self._model = model
        self._token_bytes = token_bytes

    async def run(self, enough: asyncio.Event) -> None:
        """Until there is enough, and the last answer is over."""
        while not enough.is_set():
            wish = self._wish()
            answer = Answer(wish, Truth(wish, self._token_bytes), time.monotonic)
            self.answers.append(answer)
            while answer.outcome == "unfinished":
                answer.outcome = await self._connect(answer)
                answer.over_at = time.monotonic()
                await asyncio.sleep(self._rng.uniform(0.02, 0.2))

    def _wish(self) -> Wish:
        rng = self._rng
        is_long = rng.random() < 0.4
        comes_back = rng.random() < 0.7
        return Wish(
            prompt=tuple(rng.choices(VOCABULARY, k=rng.randint(1, 200))),
            max_tokens=rng.randint(100, 400) if is_long else rng.randint(1, 40),
            n=rng.choice((1, 1, 1, 1, 2, 3)),
            has_usage=rng.random() < 0.3,
            key=f"{self._name} {len(self.answers)} {rng.random()}" if comes_back else "",
            leaves_after=rng.randint(1, 60) if rng.random() < 0.1 else 0,
        )

    async def _connect(self, answer: Answer) -> str:
        """One connection; how the answer ended with it, if it did."""
        answer.connect()
        try:
            status = await self._exchange(answer)
        except LeftError:
            return "left"
        except (ExchangeError, OSError, TimeoutError):
            return self._cut(answer)
        if answer.is_done:
            return "whole"
        if status in BUSY or answer.error in PASSING:
            return self._cut(answer)
        if status == 200 and not answer.error:
            answer.wrong.append(f"{answer.stream}: a stream without an end")
        return f"failed: {answer.error or f'{status} {answer.refused_with()}'}"

    def _cut(self, answer: Answer) -> str:
        """A stream that was begun is cut; of what had no answer nobody knows whether it exists."""
        if answer.wish.key:
            return "unfinished"
        return "cut" if answer.stream else "unanswered"

    async def _exchange(self, answer: Answer) -> int:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(SILENCE_SECONDS) as patience:

            def take(data: bytes) -> None:
                patience.reschedule(loop.time() + SILENCE_SECONDS)
                answer.feed(data)
                if 0 < answer.wish.leaves_after <= len(answer.times):
                    raise LeftError

            return await exchange(*self._request(answer), take)

    def _request(self, answer: Answer) -> tuple[Server, bytes]:
        """POST, or where the stream is known one of the two ways to go on with it."""
        headers = {"Idempotency-Key": answer.wish.key} if answer.wish.key else {}
        if answer.last_event:
            headers["Last-Event-ID"] = answer.last_event
        server = Server("127.0.0.1", self._rng.choice(self._ports), False, "", headers)
        if answer.stream and self._rng.random() < 0.5:
            return server, server.request("GET", f"/v1/streams/{answer.stream}")
        return server, server.request("POST", PATH, answer.wish.body(self._model))
