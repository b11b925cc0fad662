"""What the gateway serves, as an OpenAPI document: routes, parameters and answers; pure."""

from collections.abc import Sequence
from typing import Any

from common.version import VERSION
from gateway.openapi_shapes import STRING, Schema, answer_shapes, request_headers, request_shapes
from gateway.parameters import ApiLimits

JSON = "application/json"
EVENTS = "text/event-stream"  # whose events OpenAPI 3.1 has no words for
REASONS = {
    400: "the request makes no sense, or does not fit",
    401: "no key, or a wrong one",
    404: "there is no such model, or stream",
    408: "the body took too long to arrive",
    413: "the body is too large",
    415: "the body is not JSON",
    422: "the key was used with another body",
    429: "too much is in line; Retry-After says when to come again",
    499: "cancelled by somebody else",
    500: "the request failed",
    503: "something is missing for the moment",
    504: "the deadline passed",
}
RETRY = (429, 503)  # with a Retry-After
ASKED = (400, 404, 408, 413, 415, 422, 429, 499, 500, 503, 504)  # why a POST fails
RESUMED = (400, 404, 429, 499, 500, 503, 504)


def document(limits: ApiLimits, *, needs_key: bool) -> dict[str, Any]:
    """OpenAPI 3.1. `needs_key`: keys are set, and only the paths that are open do without one."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Chairlift", "version": VERSION},
        "security": [{"key": []}] if needs_key else [],
        "paths": _paths(needs_key),
        "components": {
            "schemas": request_shapes(limits) | answer_shapes(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths(needs_key: bool) -> dict[str, Any]:
    denied = (401,) if needs_key else ()
    open_to_all: Schema = {"security": []}
    health = {200: {JSON: _ref("Health")}, 503: {JSON: _ref("Health")}}
    return {
        "/v1/chat/completions": {"post": _post("A chat completion", "Chat", denied)},
        "/v1/completions": {"post": _post("A completion", "Completion", denied)},
        "/v1/streams/{stream}": {"get": _resume(denied)},
        "/v1/models": {"get": _get("The model served", {200: {JSON: _ref("Models")}}, denied)},
        "/v1/models/{model}": {
            "get": _get("One model", {200: {JSON: _ref("Model")}}, (*denied, 404))
            | {"parameters": [_parameter("model", "path", STRING)]}
        },
        "/health": {"get": _get("Whether the pool moves", health) | open_to_all},
        "/ready": {"get": _get("Whether a request would be answered", health) | open_to_all},
        "/version": {"get": _get("The version", {200: {JSON: _ref("Version")}}) | open_to_all},
        "/metrics": {"get": _get("For Prometheus", {200: {"text/plain": STRING}}, denied)},
        "/openapi.json": {"get": _get("This document", {200: {JSON: {"type": "object"}}}, denied)},
    }


def _post(summary: str, shape: str, denied: Sequence[int]) -> dict[str, Any]:
    answers = {200: {JSON: _ref(shape), EVENTS: {}}}
    return _get(summary, answers, (*denied, *ASKED)) | {
        "parameters": [_parameter(name, "header", it) for name, it in request_headers().items()],
        "requestBody": {"required": True, "content": {JSON: {"schema": _ref(f"{shape}Request")}}},
    }


def _resume(denied: Sequence[int]) -> dict[str, Any]:
    whole = {"anyOf": [_ref("Chat"), _ref("Completion")]}
    answers = {200: {JSON: whole, EVENTS: {}}}
    return _get("What a request was answered, and goes on being", answers, (*denied, *RESUMED)) | {
        "parameters": [
            _parameter("stream", "path", STRING),
            _parameter("Last-Event-ID", "header", request_headers()["Last-Event-ID"]),
        ]
    }


def _get(
    summary: str, answers: dict[int, dict[str, Schema]], failures: Sequence[int] = ()
) -> dict[str, Any]:
    told = answers | {status: {JSON: _ref("Error")} for status in sorted(failures)}
    return {
        "summary": summary,
        "responses": {str(status): _response(status, kinds) for status, kinds in told.items()},
    }


def _response(status: int, kinds: dict[str, Schema]) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": REASONS.get(status, "the answer"),
        "content": {kind: {"schema": schema} if schema else {} for kind, schema in kinds.items()},
    }
    if status in RETRY and kinds == {JSON: _ref("Error")}:
        response["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return response


def _parameter(name: str, place: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
