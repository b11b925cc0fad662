"""The HTTP server: uvicorn, with errors in OpenAI's shape also for what is no HTTP at all."""

import contextlib
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import ApiError

MAX_HEAD_BYTES = 64 << 10  # of a request's line and headers, beyond what one read brings

NO_HTTP = ApiError("This is no valid HTTP request.", status=400, kind="invalid_request_error")
TOO_LARGE = ApiError("The headers are too large.", status=431, kind="invalid_request_error")


class Server(uvicorn.Server):
    """Leaves the signals alone: whoever runs it drains first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: ASGIApp, graceful_seconds: int) -> Server:
    """`graceful_seconds`: for which running answers may go on once `should_exit` is set."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=graceful_seconds,
    )
    return Server(config)


class Protocol(HttpToolsProtocol):
    """uvicorn's own, whose parser neither bounds a head nor says in JSON what it refuses."""

    _is_in_head = False
    _num_head_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_in_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse(TOO_LARGE)

    def on_message_begin(self) -> None:
        self._is_in_head, self._num_head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        del msg  # uvicorn's, for every error of the parser
        self._is_in_head = False
        self._refuse(NO_HTTP)

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
        self.transport.close()
