"""Whole responses over raw ASGI: JSON bodies, and errors in OpenAI's shape."""

from collections.abc import Iterable

from starlette.types import Send

from gateway.admission import RefusedError
from gateway.errors import ApiError

RawHeader = tuple[bytes, bytes]
JSON: RawHeader = (b"content-type", b"application/json")


async def reply(
    send: Send, status: int, body: bytes, headers: Iterable[RawHeader] = (JSON,)
) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def reply_error(send: Send, error: ApiError, headers: Iterable[RawHeader] = ()) -> None:
    await reply(send, error.status, error.body(), (JSON, *error_headers(error), *headers))


def error_headers(error: ApiError) -> list[RawHeader]:
    if isinstance(error, RefusedError):
        return [(b"retry-after", b"%d" % error.retry_seconds)]
    return [(b"www-authenticate", b"Bearer")] if error.status == 401 else []
