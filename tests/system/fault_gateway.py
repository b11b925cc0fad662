"""A gateway of a faulty pool: the real one, but for HTTP's parsing, text models and sockets."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from common.config import GatewaySettings
from common.messages import GatewayId, Submit
from gateway.completions import Completions
from gateway.resume import Resume
from gateway.service import GatewayService
from tests.system.fault_clients import Client
from tests.system.processes import Process
from tests.system.truthful import token_bytes

SETTINGS = GatewaySettings(keep_alive_seconds=5.0)


class Ask(Completions):
    """Its requests come parsed."""

    def __init__(self, service: GatewayService) -> None:
        super().__init__(service, parse=mock.Mock())

    async def _submit_of(self, _wishes: Any, scope: Any, _receive: Any) -> Submit:
        submit: Submit = scope["submit"]
        return replace(submit, gateway=self.service.gateway)


class Gateway:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.id = GatewayId(process.name)
        self.was_away = False  # for so long that its requests may have been cancelled
        self.clients: list[Client] = []
        bus: Any = process.bus
        model: Any = SimpleNamespace(name="m", tokenizer=SimpleNamespace(token_bytes=token_bytes))
        self.service = GatewayService(bus, self.id, model, SETTINGS)
        self.ask, self.resume = Ask(self.service), Resume(self.service)
        self.group = asyncio.TaskGroup()
        process.start(self._run)

    @property
    def num_open(self) -> int:
        return self.service.router.num_open

    async def _run(self) -> None:
        async with self.group:
            self.group.create_task(self.service.run())

    def serve(self, client: Client, *, is_new: bool) -> None:
        self.clients.append(client)
        self.group.create_task(self._serve(client, is_new=is_new))

    async def _serve(self, client: Client, *, is_new: bool) -> None:
        scope, connection = client.request(is_new=is_new), client.connect()
        route = self.ask if scope["method"] == "POST" else self.resume
        await route(scope, connection.receive, connection.send)
        self.process.note(self.id, f"{client.submit.submission_id} is served")
