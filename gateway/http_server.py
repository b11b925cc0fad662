"""The HTTP server: uvicorn, with bounds for what a connection may cost.

Errors are in OpenAI's shape also for what is no HTTP at all. Whoever sends a head for ever, or
never reads its answer, is cut off; if there are more connections than descriptors, those that have
asked for nothing yet give way.
"""

import asyncio
import contextlib
import resource
import time
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import ApiError

MAX_HEAD_BYTES = 64 << 10  # of a request's line and headers, beyond what one read brings

HEAD_SECONDS = 20.0  # for a request's line and headers to arrive
REST_SECONDS = 20.0  # for a body to end that was answered before it did
FIRST_SECONDS = 1.0  # for the first request of a connection to come, where the server ends
STALLED_SECONDS = 60.0  # in which a client must have taken something of what it was sent
SWEEP_TICKS = 10  # of a tenth of a second: how often these are looked at
SPARE_DESCRIPTORS = 64  # for whatever is no client

NO_HTTP = ApiError("This is no valid HTTP request.", status=400, kind="invalid_request_error")
TOO_LARGE = ApiError("The headers are too large.", status=431, kind="invalid_request_error")
TOO_SLOW = ApiError("The headers took too long.", status=408, kind="invalid_request_error")


class PipelinedError(Exception):
    """A request comes before the one before it was answered."""


class Config(uvicorn.Config):
    """`silent`: connections that have asked for nothing yet, the oldest first."""

    def __init__(self, app: ASGIApp, max_connections: int, **options: Any) -> None:
        super().__init__(app, **options)
        self.max_connections = max_connections
        self.silent: dict[Protocol, None] = {}


class Server(uvicorn.Server):
    """Leaves the signals alone: whoever runs it drains first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % SWEEP_TICKS == 0:
            now = time.monotonic()
            for connection in list(self.server_state.connections):
                assert isinstance(connection, Protocol)
                connection.sweep(now)
        return await super().on_tick(counter)


def make_server(app: ASGIApp, graceful_seconds: int, max_connections: int | None = None) -> Server:
    """`graceful_seconds`: for which running answers may go on once `should_exit` is set."""
    config = Config(
        app,
        max_connections or num_descriptors() - SPARE_DESCRIPTORS,
        http=Protocol,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=graceful_seconds,
    )
    return Server(config)


def num_descriptors() -> int:
    """As many as this process may have open, now that the limit is as high as it can be."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


class Ending:
    """The transport as a cycle of uvicorn's sees it, whose end is the protocol's to choose."""

    def __init__(self, protocol: "Protocol") -> None:
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing
        self.close = protocol.end


class Protocol(HttpToolsProtocol):
    """uvicorn's own, whose parser neither bounds a head nor says in JSON what it refuses.

    One request at a time: uvicorn reads nothing while one is answered and another one waits, and
    would not see that the client leaves. What was sent ahead is not answered: the connection ends.
    """

    config: Config
    _is_in_head = False
    _num_head_bytes = 0
    _head_since: float | None = None  # waiting for one that has begun, or is the first
    _is_in_message = False
    _is_deaf = False  # to what the client says from now on
    _num_unsent = 0  # bytes, at the last sweep
    _moved_at = 0.0  # when the client was last seen to take something, or had nothing to take
    _answered_at: float | None = None  # the answer is over, and its request not
    _is_ending = False  # the server is: what comes now is the last

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))  # uvloop's is no subclass
        self._head_since = time.monotonic()
        self.config.silent[self] = None
        if len(self.connections) > self.config.max_connections:
            next(iter(self.config.silent)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.config.silent.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        super().data_received(data)
        if self._has_answered and not self._is_in_message and self._head_since is None:
            self._head_since = time.monotonic()  # empty lines, which uvicorn takes for life
        if self._is_in_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse(TOO_LARGE)

    def on_message_begin(self) -> None:
        if self.cycle and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            self._is_deaf = True
            raise PipelinedError
        self._is_in_head, self._num_head_bytes = True, 0
        self._is_in_message, self._answered_at = True, None
        if self._head_since is None:
            self._head_since = time.monotonic()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head, self._head_since = False, None
        self.config.silent.pop(self, None)
        super().on_headers_complete()
        self.cycle.transport = cast("asyncio.Transport", Ending(self))
        if self._is_ending:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._is_in_message, self._answered_at = False, None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._is_in_message:
            self._answered_at = time.monotonic()
        super().on_response_complete()
        if self._is_deaf:
            self._unset_keepalive_if_required()  # `sweep` ends it

    def shutdown(self) -> None:
        """The server ends. Who has just connected is about to ask, and would lose what it sends."""
        if not self._has_asked and not self._is_deaf:
            self._is_ending = True
            asyncio.get_running_loop().call_later(FIRST_SECONDS, self._end_silent)
        else:
            super().shutdown()

    def _end_silent(self) -> None:
        if not self._has_asked:
            self.transport.close()

    def resume_writing(self) -> None:
        self._moved_at = time.monotonic()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        del msg  # uvicorn's, for every error of the parser
        self._is_in_head = False
        if not self._is_deaf:
            self._refuse(NO_HTTP)

    def sweep(self, now: float) -> None:
        """Cut it off if the client has taken too long, with whatever it is about."""
        if self._is_stalled(now):
            self.transport.abort()
        elif self._head_since is not None and now - self._head_since > HEAD_SECONDS:
            self._refuse(TOO_SLOW)
        elif self._answered_at is not None and now - self._answered_at > REST_SECONDS:
            self.transport.close()

    def _is_stalled(self, now: float) -> bool:
        """The answer waits to be sent, and nothing of it was taken for long."""
        before, self._num_unsent = self._num_unsent, self.transport.get_write_buffer_size()
        grows = not (self.flow.write_paused or self.transport.is_closing() or self._has_answered)
        if not self._num_unsent or self._num_unsent < before or grows or not before:
            self._moved_at = now
        return now - self._moved_at > STALLED_SECONDS

    @property
    def _has_asked(self) -> bool:
        return bool(self.cycle)

    @property
    def _has_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def end(self) -> None:
        """Say no more.

        A client that is still sending would lose the answer if what it sends met a closed socket.
        """
        if not self._is_in_message or self.transport.is_closing():
            self.transport.close()
            return
        self._is_deaf, self._head_since, self._answered_at = True, None, time.monotonic()
        self.flow.resume_reading()
        self.config.silent[self] = None
        self.transport.write_eof()

    def _refuse(self, error: ApiError) -> None:
        """The last words on this connection, unless an answer has begun: it would be garbled."""
        cycle = self.cycle
        if not (cycle and cycle.response_started) or cycle.response_complete:
            body = error.body()
            head = STATUS_LINE[error.status] + (
                b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
                % len(body)
            )
            self.transport.write(head + body)
        if cycle:
            cycle.disconnected = True  # what else it answers goes nowhere
            cycle.message_event.set()
        self.end()
