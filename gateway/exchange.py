"""One answer on its way to its client: streamed as frames, or whole. Raw ASGI.

A stream costs one task that sleeps until tokens are here and one `send` for all that are ready,
and a second task that waits for the client to leave.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence

from starlette.types import Receive, Send

from common.messages import FinishReason
from gateway.answer import Answer, Event
from gateway.chunks import stream_id
from gateway.failures import failure_of
from gateway.frames import Frames, error_event
from gateway.ledger import Ledger
from gateway.replies import JSON, RawHeader, reply
from gateway.token_router import TokenRouter

KEEP_ALIVE = b": keep-alive\n\n"
SILENT_SECONDS = 60.0  # of waiting at a time, where nothing is shown meanwhile
DEADLINE_GRACE_SECONDS = 5.0  # for the scheduler to end it first
STREAM_ID = b"x-stream-id"  # by which any gateway goes on with it: `GET /v1/streams/<id>`
STREAM_HEADERS: Sequence[RawHeader] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class Exchange:
    def __init__(
        self,
        router: TokenRouter,
        answer: Answer,
        frames: Frames,
        ledger: Ledger,
        deadline_seconds: float | None = None,
    ) -> None:
        """`deadline_seconds`: after which it is ended here, if nobody else does; None: never."""
        self.router = router
        self.answer = answer
        self.frames = frames
        self.ledger = ledger
        self.deadline_seconds = deadline_seconds
        self.headers: Sequence[RawHeader] = (
            (b"x-request-id", answer.submission.encode()),
            (STREAM_ID, stream_id(answer.submission, chat=frames.head.chat).encode()),
        )

    async def run(self, receive: Receive, send: Send, keep_alive_seconds: float) -> int:
        """Answer the client, until it leaves. The HTTP status; 499: it left before there was one.

        Raises ApiError where nothing was sent yet and there is no answer to send.
        """
        streams = self.frames.head.stream
        with self._bounded():
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._watch(receive), name="gateway.disconnect")
                if streams:
                    await self._stream(send, keep_alive_seconds)
                else:
                    await self._gather()
                watch.cancel()
        return 200 if streams else await self._reply_whole(send)

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        """End the answer soon after its deadline, where no scheduler does; count it at the end."""
        seconds, timer = self.deadline_seconds, None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            overdue = failure_of(FinishReason.DEADLINE)
            timer = loop.call_later(seconds + DEADLINE_GRACE_SECONDS, self.answer.fail, overdue)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self._close()

    def _close(self) -> None:
        """The answer is over, one way or the other: count it."""
        kept: list[int] = []
        reasons: list[FinishReason | None] = []
        for index in range(len(self.answer.choices)):
            end, stopped = self.ledger.ended.get(index), self.frames.stopped(index)
            if stopped is not None:
                kept.append(stopped)
                reasons.append(FinishReason.STOP)
            else:
                kept.append(self.frames.num_tokens(index) if end is None else end.kept)
                reasons.append(None if end is None else end.reason)
        self.ledger.close(kept, reasons)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.answer.leave()

    async def _stream(self, send: Send, keep_alive_seconds: float) -> None:
        headers = [*STREAM_HEADERS, *self.headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        silent_from = time.monotonic()
        while not self.answer.is_over and not self.frames.failure:
            silence = time.monotonic() - silent_from
            events = await self.answer.next(max(0.0, keep_alive_seconds - silence))
            if self.answer.has_left:
                return
            if self.answer.failure is not None:
                await _send_body(send, error_event(self.answer.failure), more=False)
                return
            shown = self._feed(events)
            if not shown and time.monotonic() - silent_from >= keep_alive_seconds:
                shown = KEEP_ALIVE
            if shown:
                await _send_body(send, shown, more=True)
                silent_from = time.monotonic()
        await _send_body(send, b"" if self.frames.failure else self.frames.done(), more=False)

    def _feed(self, events: list[Event]) -> bytes:
        """The frames that these events make. Found stop strings are told to the scheduler."""
        shown = b""
        now = time.monotonic()
        for event in events:
            if event.tokens:
                self.ledger.arrive(event.choice, now)
                shown += self.frames.feed(event.choice, event.tokens)
                if (kept := self.frames.stopped(event.choice)) is not None:
                    self.router.stop(self.answer, event.choice, kept)
            if event.end is not None:
                self.ledger.end(event.choice, event.end)
                shown += self.frames.end(event.choice, event.end)
                if self.frames.failure:
                    break  # nothing follows an error event
        return shown

    async def _gather(self) -> None:
        while not (self.answer.is_over or self.answer.is_aborted or self.frames.failure):
            self._feed(await self.answer.next(SILENT_SECONDS))

    async def _reply_whole(self, send: Send) -> int:
        if self.answer.has_left:
            return 499
        if failure := self.answer.failure or self.frames.failure:
            raise failure
        await reply(send, 200, self.frames.response(), (JSON, *self.headers))
        return 200


async def _send_body(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
