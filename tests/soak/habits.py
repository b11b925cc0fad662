"""Clients of a long run, each with a habit: one stays, one leaves, one comes back, one is wrong."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import orjson
from redis import Redis

from cli.bench.http import ExchangeError, Server, exchange
from tests.chaos.answer import Answer, Truth, Wish
from tests.soak.watch import POOL

COMPLETIONS = "/v1/completions"
CONTROL = f"{POOL}control"
VOCABULARY = range(1000, 9000)  # ordinary words
WEIGHTS = {  # of a hundred clients
    "stays": 40,  # until its stream is over
    "waits": 10,  # for an answer that is not streamed
    "leaves": 12,  # in the midst of its stream
    "hurries": 8,  # away again, maybe before anything came
    "returns": 12,  # to the stream that it cut off itself, by its id or by its key
    "cancels": 6,  # from outside, through Redis
    "errs": 4,  # with a body that makes no sense
    "mumbles": 4,  # half a request, or nothing, and closes
    "looks": 4,  # at health, models and metrics
}
PATIENCE_SECONDS = 60.0


class LeftError(Exception):
    """The client has seen enough."""


class Clients:
    """`outcomes` counts what came of them; `wrong` says what must not be."""

    def __init__(
        self,
        server: Server,
        redis: "Redis",
        model: str,
        token_bytes: Callable[[int], bytes],
        rng: random.Random,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self.num_tokens = 0  # that clients were shown
        self.wrong: list[str] = []
        self._server = server
        self._redis = redis
        self._model = model
        self._token_bytes = token_bytes
        self._rng = rng

    async def one(self) -> None:
        """One client, whoever comes next."""
        [habit] = self._rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        behave: Callable[[], Awaitable[str]] = getattr(self, f"_{habit}")
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                outcome = await behave()
        except (ExchangeError, OSError, TimeoutError) as error:
            outcome = "failed"
            self.wrong.append(f"who {habit}: {error!r}")
        self.outcomes[f"{habit}: {outcome}"] += 1

    async def _stays(self) -> str:
        answer = self._answer(self._wish())
        status = await self._listen(self._server, self._post(answer.wish), answer)
        self._check(answer.is_done, f"{status} {answer.error} in the place of a whole answer")
        return self._over(answer, "whole")

    async def _waits(self) -> str:
        wish = self._wish()
        body = orjson.loads(replace(wish, has_usage=False).body(self._model)) | {"stream": False}
        status, reply = await self._ask("POST", COMPLETIONS, orjson.dumps(body))
        if status != 200:
            self.wrong.append(f"{status} {reply!r:.200} in the place of a whole answer")
            return "refused"
        truth = Truth(wish, self._token_bytes).text
        texts = [choice["text"] for choice in orjson.loads(reply)["choices"]]
        self._check(texts == [truth] * wish.n, "not the right text")
        self.num_tokens += wish.n * wish.max_tokens
        return "whole"

    async def _leaves(self) -> str:
        answer = self._answer(replace(self._wish(), leaves_after=self._rng.randint(1, 60)))
        return await self._until_left(self._server, self._post(answer.wish), answer)

    async def _hurries(self) -> str:
        answer = self._answer(self._wish())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rng.uniform(0, 0.1)):
                await self._listen(self._server, self._post(answer.wish), answer)
        return self._over(answer, "left")

    async def _returns(self) -> str:
        wish = replace(self._wish(), key=f"key {self._rng.random()}")
        answer = self._answer(wish)
        for _ in range(self._rng.randint(1, 3)):
            num_frames = len(answer.times) + self._rng.randint(1, 40)
            answer.wish = replace(wish, leaves_after=num_frames)
            answer.connect()
            if await self._until_left(*self._onwards(answer), answer) == "whole":
                return "whole"
            await asyncio.sleep(self._rng.uniform(0, 0.5))
        answer.wish = wish
        answer.connect()
        status = await self._listen(*self._onwards(answer), answer)
        self._check(answer.is_done, f"{status} {answer.error}: no whole answer after a return")
        return self._over(answer, "whole")

    async def _cancels(self) -> str:
        answer = self._answer(replace(self._wish(), leaves_after=self._rng.randint(1, 60)))
        cancelled = False

        def cancel() -> None:
            nonlocal cancelled
            cancelled = True
            target = answer.stream.partition("-")[2]
            self._redis.xadd(CONTROL, {"kind": "cancel", "request": target})

        await self._listen(self._server, self._post(answer.wish), answer, enough=cancel)
        ended = answer.is_done or (cancelled and answer.error == "cancelled")
        self._check(ended, f"{answer.error} in the place of a cancelled answer")
        return self._over(answer, "whole" if answer.is_done else "cancelled")

    async def _errs(self) -> str:
        body = self._rng.choice((b"{", b"[]", b"\xff", b'{"model":"other"}', b"[" * 5000))
        status, reply = await self._ask("POST", COMPLETIONS, body)
        self._check(status in {400, 404} and b'"error"' in reply, f"{status} {reply!r:.200}")
        return "told"

    async def _mumbles(self) -> str:
        request = self._post(self._wish())
        said = request[: self._rng.randrange(len(request))]
        _, writer = await asyncio.open_connection(self._server.host, self._server.port)
        writer.write(said)
        await asyncio.sleep(self._rng.uniform(0, 0.5))
        writer.close()
        return "left"

    async def _looks(self) -> str:
        for path in ("/health", "/ready", "/v1/models", "/metrics"):
            status, _ = await self._ask("GET", path)
            self._check(status == 200, f"{path}: {status}")
        return "seen"

    def _wish(self) -> Wish:
        rng = self._rng
        return Wish(
            prompt=tuple(rng.choices(VOCABULARY, k=rng.randint(1, 200))),
            max_tokens=rng.randint(100, 400) if rng.random() < 0.3 else rng.randint(1, 40),
            n=rng.choice((1, 1, 1, 1, 2, 3)),
            has_usage=rng.random() < 0.3,
            key="",
            leaves_after=0,
        )

    def _answer(self, wish: Wish) -> Answer:
        return Answer(wish, Truth(wish, self._token_bytes), time.monotonic)

    def _post(self, wish: Wish) -> bytes:
        return self._server.request("POST", COMPLETIONS, wish.body(self._model))

    def _onwards(self, answer: Answer) -> tuple[Server, bytes]:
        """POST under the key, or one of the two ways to go on with the stream."""
        headers = {"Idempotency-Key": answer.wish.key}
        if answer.last_event:
            headers["Last-Event-ID"] = answer.last_event
        server = replace(self._server, headers=headers)
        if answer.stream and self._rng.random() < 0.5:
            return server, server.request("GET", f"/v1/streams/{answer.stream}")
        return server, server.request("POST", COMPLETIONS, answer.wish.body(self._model))

    async def _listen(
        self,
        server: Server,
        request: bytes,
        answer: Answer,
        enough: Callable[[], None] | None = None,
    ) -> int:
        """The status; `enough` is called once, when `leaves_after` frames have come."""

        def take(data: bytes) -> None:
            had = len(answer.times)
            answer.feed(data)
            if enough and had < answer.wish.leaves_after <= len(answer.times):
                enough()

        return await exchange(server, request, take)

    async def _until_left(self, server: Server, request: bytes, answer: Answer) -> str:
        def leave() -> None:
            raise LeftError

        try:
            status = await self._listen(server, request, answer, leave)
        except LeftError:
            return self._over(answer, "whole" if answer.is_done else "left")
        self._check(answer.is_done, f"{status} {answer.error} in the place of an answer")
        return self._over(answer, "whole")

    async def _ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        reply = bytearray()
        status = await exchange(
            self._server, self._server.request(method, path, body), reply.extend
        )
        return status, bytes(reply)

    def _over(self, answer: Answer, outcome: str) -> str:
        self.wrong += answer.wrong
        answer.wrong = []
        if outcome != "left" or not answer.wish.key:
            self.num_tokens += answer.num_tokens
        return outcome

    def _check(self, holds: bool, text: str) -> None:
        if not holds:
            self.wrong.append(text)
