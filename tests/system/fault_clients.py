"""Gateways of a faulty pool, and clients that leave, read slowly, stop, and check what they see."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
from starlette.types import Message

from common.bus import BusError
from common.messages import GatewayId, Submit, request_id
from common.metrics import GatewayMetrics
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.frames import Frames
from gateway.health import Monitor
from gateway.ledger import CountingLedger
from gateway.token_router import TokenRouter
from tests.system.faulty_server import FaultyServer
from tests.system.processes import Process
from tests.system.truthful import full_answer, token_bytes, tokens_of

KEEP_ALIVE_SECONDS = 5.0


@dataclass
class Seen:
    """What a client was shown of one choice."""

    text: str = ""
    finish: str = ""  # the finish reason; "": it was told none


class Client:
    """One request, and what its client makes of the answer. The other end of an ASGI connection."""

    def __init__(self, submit: Submit, server: FaultyServer) -> None:
        self.submit = submit
        self.server = server
        self.leaves_at: int | None = None  # tokens seen, all choices together
        self.reads_seconds = 0.0  # for each message
        self.is_accepted = False
        self.is_refused = False
        self.has_left = False
        self.is_over = False  # its answer, or its connection
        self.error: dict[str, Any] | None = None
        self.seen = [Seen() for _ in range(submit.num_choices)]
        self.expected = [expected_text(submit, choice) for choice in range(submit.num_choices)]
        self._leaving = asyncio.Event()
        self._rest = b""

    @property
    def streams(self) -> bool:
        return bool(self.submit.frame["stream"])

    @property
    def stops(self) -> Sequence[str]:
        stops: Sequence[str] = self.submit.frame["stop"]
        return stops

    def leave(self) -> None:
        self.has_left = True
        self._leaving.set()

    async def receive(self) -> Message:
        await self._leaving.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.reads_seconds:
            await asyncio.sleep(self.reads_seconds)
        if message["type"] == "http.response.body":
            self._rest += message["body"]
            if self.streams:
                self._read_events()
            elif not message.get("more_body"):
                self._read_whole(orjson.loads(self._rest))

    def _read_events(self) -> None:
        *events, self._rest = self._rest.split(b"\n\n")
        for event in events:
            data = event.rpartition(b"\n")[2]
            if data == b"data: [DONE]":
                assert all(seen.finish for seen in self.seen), "done before every end"
            elif data.startswith(b"data: "):
                self._read_event(orjson.loads(data.removeprefix(b"data: ")))

    def _read_event(self, event: dict[str, Any]) -> None:
        assert self.error is None, "something follows an error"
        if "error" in event:
            self.error = event["error"]
            return
        for choice in event["choices"]:
            self._show(choice["index"], choice["text"], choice["finish_reason"] or "")
        shown = sum(len(tokens_of(seen.text)) for seen in self.seen)
        if self.leaves_at is not None and shown >= self.leaves_at:
            self.leave()

    def _read_whole(self, body: dict[str, Any]) -> None:
        if "error" in body:
            self.error = body["error"]
            return
        for choice in body["choices"]:
            self._show(choice["index"], choice["text"], choice["finish_reason"])

    def _show(self, index: int, text: str, finish: str) -> None:
        """Only what is true, in order, written before it was shown, and nothing after the end."""
        seen = self.seen[index]
        assert not seen.finish, f"choice {index} goes on after its end"
        start = len(tokens_of(seen.text))
        seen.text += text
        seen.finish = finish
        expected = self.expected[index]
        assert expected.startswith(seen.text), f"{seen.text!r} of {expected!r}"
        request = request_id(self.submit.submission_id, index)
        committed = self.server.books.committed.get(request, {})
        for position in range(start, len(tokens_of(seen.text))):
            assert position in committed or self.server.has_lost, (
                f"token {position} is shown and not written"
            )


def expected_text(submit: Submit, choice: int) -> str:
    """All that a client can ever be shown: up to the end token, and up to a stop string."""
    tokens, _ = full_answer(submit, choice)
    shown = [token for token in tokens if token not in submit.ending.end_tokens]
    text = b"".join(map(token_bytes, shown)).decode()
    for stop in submit.frame["stop"]:
        text = text.partition(stop)[0]
    return text


@cache
def metrics() -> GatewayMetrics:
    """One for all: nobody looks at them here, and they cost more than a run."""
    return GatewayMetrics("m")


class Gateway:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.id = GatewayId(process.name)
        faulty: Any = process.bus
        self.router = TokenRouter(faulty, self.id, metrics())
        self.monitor = Monitor(faulty, self.id, metrics())
        self.was_away = False  # for so long that its requests may have been cancelled
        self.clients: list[Client] = []
        self.group = asyncio.TaskGroup()
        process.start(self._run)

    async def _run(self) -> None:
        async with self.group:
            self.group.create_task(self.router.run())
            self.group.create_task(self.monitor.run())

    def ask(self, client: Client) -> None:
        self.clients.append(client)
        self.group.create_task(self._answer(client))

    async def _answer(self, client: Client) -> None:
        """What `Completions` does with a request that was understood."""
        submit = client.submit
        try:
            async with self.router.open(submit) as answer:
                client.is_accepted = True
                loop = asyncio.get_running_loop()
                ledger = CountingLedger(submit, metrics(), loop.time())
                frames = Frames(submit.submission_id, submit.frame, token_bytes)
                exchange = Exchange(self.router, answer, frames, ledger)
                await exchange.run(client.receive, client.send, KEEP_ALIVE_SECONDS)
        except BusError:
            client.is_refused = True
        except ApiError as error:
            client.error = orjson.loads(error.body())["error"]
        client.is_over = True
        self.process.note(self.id, f"{submit.submission_id} is over")
