"""The Starlette application: routes, authorisation, and errors in OpenAI's shape."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from common.api_keys import ApiKey
from gateway.auth import Authorisation
from gateway.completions import Completions
from gateway.errors import ApiError
from gateway.handlers import Handlers
from gateway.openai import parse_chat, parse_completion
from gateway.openapi import document
from gateway.resume import Resume
from gateway.service import GatewayService


def build_app(service: GatewayService, keys: Sequence[ApiKey]) -> Starlette:
    """The application of a service, which runs beside it. No keys: everybody may ask."""
    handlers = Handlers(service, document(service.model.limits, needs_key=bool(keys)))
    post, get = ["POST"], ["GET"]
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", Completions(service, parse_chat), methods=post),
            Route("/v1/completions", Completions(service, parse_completion), methods=post),
            Route("/v1/streams/{stream}", Resume(service), methods=get),
            Route("/v1/models", handlers.models, methods=get),
            Route("/v1/models/{model:path}", handlers.model, methods=get),
            Route("/health", handlers.health, methods=get),
            Route("/ready", handlers.ready, methods=get),
            Route("/metrics", handlers.metrics, methods=get),
            Route("/version", handlers.version, methods=get),
            Route("/openapi.json", handlers.openapi, methods=get),
        ],
        middleware=[Middleware(Authorisation, keys=keys)],
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            Exception: _internal_error,
        },
    )
    app.router.redirect_slashes = False
    return app


def _respond(error: ApiError, headers: dict[str, str] | None = None) -> Response:
    return Response(error.body(), error.status, headers=headers, media_type="application/json")


async def _api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _respond(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    texts = {
        404: f"Unknown request URL: {request.method} {request.url.path}.",
        405: f"Not allowed: {request.method} {request.url.path}.",
    }
    message = texts.get(error.status_code, "The request cannot be answered.")
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    known = ApiError(message, status=error.status_code, kind=kind)
    return _respond(known, dict(error.headers or {}))


async def _internal_error(_request: Request, _error: Exception) -> Response:
    """A bug. The server logs it with its traceback; the client is not shown a word of it."""
    return _respond(ApiError("Internal server error.", status=500, code="internal_error"))
