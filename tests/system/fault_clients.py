"""Clients of a faulty pool: they leave, read slowly, come back, and check whatever they see."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import Message, Scope

from common.messages import Submit, request_id
from gateway.chunks import stream_id
from gateway.positions import HEADER
from gateway.wishes import KEY
from tests.system.faulty_server import FaultyServer
from tests.system.truthful import BREAKING, FAILING, full_answer, token_bytes, tokens_of

REFUSALS = {"no_scheduler", "no_memory", "unavailable", "queue_full"}  # 429 and 503: not now


@dataclass
class Seen:
    """What a client was shown of one choice."""

    text: str = ""
    finish: str = ""  # the finish reason; "": it was told none


class Client:
    """Wants one answer, over one connection after the other."""

    def __init__(self, submit: Submit, server: FaultyServer, key: str = "") -> None:
        """`key`: the Idempotency-Key under which it asks; "": none."""
        self.submit = submit
        self.server = server
        self.key = key
        self.leaves_at: int | None = None  # tokens seen, all choices together
        self.comes_back = False  # whenever it has left, or was cut off
        self.reads_seconds = 0.0  # for each message
        self.was_gone = False  # at some time, or for good
        self.was_cancelled = False  # by an operator
        self.is_twin = False
        self.is_over = False  # it wants nothing more
        self.error: dict[str, Any] | None = None
        self.seen = [Seen() for _ in range(submit.num_choices)]
        self.expected = [expected_text(submit, choice) for choice in range(submit.num_choices)]
        self.last_event = ""
        self.connection: Connection | None = None

    @property
    def streams(self) -> bool:
        return bool(self.submit.frame["stream"])

    @property
    def stops(self) -> Sequence[str]:
        stops: Sequence[str] = self.submit.frame["stop"]
        return stops

    def twin(self) -> "Client":
        """Another one that posts the same under the same key."""
        twin = Client(self.submit, self.server, self.key)
        twin.is_twin = True
        return twin

    def ends_badly(self, how: int) -> bool:
        return any(prompt[-1] == how for prompt in self.submit.prompts)

    def connect(self) -> "Connection":
        self.connection = Connection(self)
        return self.connection

    def leave(self) -> None:
        self.was_gone = True
        if self.connection:
            self.connection.close()

    def request(self, *, is_new: bool) -> Scope:
        """To ask, again under its key, or to see what it asked for before."""
        headers = [(HEADER, self.last_event)] if self.last_event else []
        if self.key:
            headers.append((KEY, self.key))
        stream = stream_id(self.submit.submission_id, chat=False)
        return {
            "type": "http",
            "method": "POST" if is_new or self.key else "GET",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
            "path_params": {"stream": stream},
            "submit": self.submit,
        }

    def read_event(self, event: bytes) -> None:
        *lines, data = event.split(b"\n")
        data = data.removeprefix(b"data: ")
        if data.startswith(b"{"):
            self.read_body(orjson.loads(data))
        elif data == b"[DONE]":
            assert all(seen.finish for seen in self.seen), "done before every end"
            self.is_over = True
        for line in lines:
            if line.startswith(b"id: "):
                self.last_event = line.removeprefix(b"id: ").decode()
        shown = sum(len(tokens_of(seen.text)) for seen in self.seen)
        if self.leaves_at is not None and shown >= self.leaves_at:
            self.leaves_at = None
            self.leave()

    def read_body(self, body: dict[str, Any]) -> None:
        assert self.error is None, "something follows an error"
        if "error" in body:
            self._hear_of(body["error"])
        for choice in body.get("choices", ()):
            self._show(choice["index"], choice["text"], choice["finish_reason"] or "")

    def _hear_of(self, error: dict[str, Any]) -> None:
        """It comes back where it was cut off, and asks again under its key where it was refused."""
        is_cut_off = error["code"] == "shutting_down"
        is_refused = self.key and error["code"] in REFUSALS
        if self.comes_back and (is_cut_off or is_refused):
            self.leave()
        else:
            self.error = error
            self.is_over = True

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
            is_written = position in committed or self.server.has_lost
            assert is_written, f"token {position} is shown and not written"


class Connection:
    """The client's end of an ASGI connection; what comes when it is closed, nobody reads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.is_closed = False
        self._leaving = asyncio.Event()
        self._status = 0
        self._rest = b""

    def close(self) -> None:
        self.is_closed = True
        self._leaving.set()

    async def receive(self) -> Message:
        await self._leaving.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._client.reads_seconds:
            await asyncio.sleep(self._client.reads_seconds)
        if self.is_closed:
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        self._rest += message["body"]
        if self._client.streams and self._status == 200:
            *events, self._rest = self._rest.split(b"\n\n")
            for event in events:
                if not self.is_closed:
                    self._client.read_event(event)
        elif not message.get("more_body"):
            self._client.read_body(orjson.loads(self._rest))
            self._client.is_over |= not self.is_closed


def expected_text(submit: Submit, choice: int) -> str:
    """All that a client can ever be shown: up to the end token, and up to a stop string."""
    tokens, _ = full_answer(submit, choice)
    shown = [token for token in tokens if token not in submit.ending.end_tokens]
    text = b"".join(map(token_bytes, shown)).decode()
    for stop in submit.frame["stop"]:
        text = text.partition(stop)[0]
    return text


KINDS: dict[str, Callable[[Client], bool]] = {  # what may be special about one
    "streams": lambda client: client.streams,
    "wants all at once": lambda client: not client.streams,
    "wants several choices": lambda client: client.submit.n > 1,
    "has several prompts": lambda client: len(client.submit.prompts) > 1,
    "has a stop string": lambda client: bool(client.stops),
    "has end tokens": lambda client: bool(client.submit.ending.end_tokens),
    "has a deadline": lambda client: client.submit.deadline_seconds is not None,
    "has an Idempotency-Key": lambda client: bool(client.key),
    "is resumable without a key": lambda client: client.submit.resumable and not client.key,
    "posts what another one posts": lambda client: client.is_twin,
    "leaves": lambda client: client.leaves_at is not None,
    "reads slowly": lambda client: client.reads_seconds > 0,
    "has a row that fails": lambda client: client.ends_badly(FAILING),
    "breaks workers": lambda client: client.ends_badly(BREAKING),
}
