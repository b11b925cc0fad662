"""What the smaller routes answer."""

import time
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from common.metrics import CONTENT_TYPE
from common.version import VERSION
from gateway.errors import BadRequestError
from gateway.health import Health
from gateway.service import GatewayService


class Handlers:
    def __init__(self, service: GatewayService, document: Mapping[str, Any]) -> None:
        """`document`: the OpenAPI document of all routes."""
        self.service = service
        self._document = orjson.dumps(document)

    async def models(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        model = request.path_params["model"]
        if model != self.service.model.name:
            message = f"The model '{model}' does not exist or you do not have access to it."
            raise BadRequestError(message, "model", "model_not_found", status=404)
        return JSONResponse(self._model())

    async def health(self, _request: Request) -> Response:
        progress = self.service.monitor.progress
        return _reply(progress.health(self.service.settings.stall_seconds, time.monotonic()))

    async def ready(self, _request: Request) -> Response:
        return _reply(self.service.readiness(time.monotonic()))

    async def metrics(self, _request: Request) -> Response:
        return Response(self.service.metrics.exposition(), headers={"content-type": CONTENT_TYPE})

    async def version(self, _request: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def openapi(self, _request: Request) -> Response:
        return Response(self._document, media_type="application/json")

    def _model(self) -> dict[str, Any]:
        model = self.service.model
        return {
            "id": model.name,
            "object": "model",
            "created": model.created,
            "owned_by": "chairlift",
            "max_model_len": self.service.monitor.progress.max_request_tokens(model.context_length),
        }


def _reply(health: Health) -> Response:
    if health.ok:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "unavailable", "reason": health.reason}, status_code=503)
