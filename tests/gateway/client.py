"""HTTP requests to the application, driven message by message, since disconnects matter."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import ASGIApp, Message


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The `data:` of each server-sent event, parsed; `[DONE]` as it is."""
        lines = [line for line in self.body.decode().split("\n") if line.startswith("data: ")]
        texts = [line.removeprefix("data: ") for line in lines]
        return [text if text == "[DONE]" else orjson.loads(text) for text in texts]

    @property
    def texts(self) -> dict[int, str]:
        """Of a streamed completion or chat: the text of each choice."""
        texts: dict[int, str] = {}
        for event in self.events:
            for choice in [] if event == "[DONE]" or "error" in event else event["choices"]:
                delta = choice.get("delta", {"content": choice.get("text")})
                text = texts.get(choice["index"], "") + (delta.get("content") or "")
                texts[choice["index"]] = text
        return texts


class Call:
    """One request in flight."""

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        body: bytes | Sequence[bytes] = b"",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.reads = asyncio.Event()  # cleared: the client takes nothing more from its socket
        self.reads.set()
        self._parts = [body] if isinstance(body, bytes) else list(body)
        self._left = asyncio.Event()
        self._over = asyncio.Event()
        self._progress = asyncio.Event()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
            "state": {},
        }
        self.task = asyncio.ensure_future(self._run(app, scope))

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            self._over.set()
            self._progress.set()

    async def _receive(self) -> Message:
        if self._parts:
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts)}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.reads.wait()
        if self._left.is_set():
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            self.body += message.get("body", b"")
        self._progress.set()

    def leave(self) -> None:
        self._left.set()
        self.reads.set()

    async def until(self, condition: Callable[["Call"], bool]) -> None:
        while not condition(self):
            assert not self._over.is_set(), self.reply()
            self._progress.clear()
            await self._progress.wait()

    def reply(self) -> Reply:
        return Reply(self.status, self.headers, bytes(self.body))

    async def over(self) -> Reply:
        await self.task
        return self.reply()
