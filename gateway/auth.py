"""Who asks: a key for every path that is not listed as open, whether a route stands there or not.

`/metrics` needs a key like the rest: it tells how much each model is used. A Prometheus server
sends one with `authorization: {credentials: …}` in its scrape configuration.
"""

import ipaddress
from collections.abc import Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from common.api_keys import ApiKey, ApiKeyError, find_key, parse_keys
from common.config import SettingError
from gateway.errors import ApiError
from gateway.replies import reply_error

OPEN_PATHS = frozenset({"/health", "/ready", "/version"})


class Authorisation:
    """Middleware around every route. It puts the tenant into the scope's `state`.

    Without keys everybody may ask, as the tenant that the body's `user` names.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[ApiKey]) -> None:
        self.app = app
        self.keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not self.keys:
            await self.app(scope, receive, send)
            return
        assert scope["type"] == "http", "no websockets are served"
        key = find_key(self.keys, _bearer(Headers(scope=scope)))
        if key is not None:
            scope.setdefault("state", {})["tenant"] = key.name
        elif scope["path"] not in OPEN_PATHS:
            await reply_error(send, UNAUTHORISED)
            return
        await self.app(scope, receive, send)


UNAUTHORISED = ApiError(
    "Incorrect API key, or none: send a header `Authorization: Bearer <key>`.",
    status=401,
    kind="invalid_request_error",
    code="invalid_api_key",
)


def _bearer(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def load_keys(path: str, host: str) -> tuple[ApiKey, ...]:
    """The keys in the file; none if `path` is empty, which only loopback allows. SettingError."""
    if not path:
        if not _is_loopback(host):
            raise SettingError(f"--host: {host} is reached from elsewhere, so set --api-keys")
        return ()
    try:
        keys = parse_keys(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        raise SettingError(f"--api-keys: {path} cannot be read") from None
    except ApiKeyError as error:
        raise SettingError(f"--api-keys: {path}: {error}") from None
    if not keys:
        raise SettingError(f"--api-keys: {path} has no key")
    return keys


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
