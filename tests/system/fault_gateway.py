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

OVERTIME_SECONDS = 5.0  # for the last answers of one that is told to end


class Ask(Completions):
    """Its requests come parsed."""

    def __init__(self, service: GatewayService) -> None:
        super().__init__(service, parse=mock.Mock())

    async def _submit_of(self, _wishes: Any, scope: Any, _receive: Any) -> Submit:
        submit: Submit = scope["submit"]
        return replace(submit, gateway=self.service.gateway)


class Gateway:
    def __init__(self, process: Process, settings: GatewaySettings) -> None:
        self.process = process
        self.id = GatewayId(process.name)
        self.was_away = False  # for so long that its requests may have been cancelled
        self.clients: list[Client] = []
        bus: Any = process.bus
        model: Any = SimpleNamespace(name="m", tokenizer=SimpleNamespace(token_bytes=token_bytes))
        self.service = GatewayService(bus, self.id, model, settings)
        self.ask, self.resume = Ask(self.service), Resume(self.service)
        self.group = asyncio.TaskGroup()
        self._serving: dict[asyncio.Task[None], Client] = {}
        self._is_told_to_end = asyncio.Event()
        process.start(self._run)

    @property
    def num_open(self) -> int:
        return self.service.router.num_open

    @property
    def is_open(self) -> bool:
        """Clients may come."""
        return self.process.is_up and not self._is_told_to_end.is_set()

    def end(self) -> None:
        """As by SIGTERM: what runs may end in time, what does not is told to look elsewhere."""
        self._is_told_to_end.set()

    async def _run(self) -> None:
        async with self.group:
            running = self.group.create_task(self.service.run())
            await self._is_told_to_end.wait()
            await self.service.drain()
            await self._finish()
            running.cancel()
        await self.service.leave()

    async def _finish(self) -> None:
        """As the HTTP server does: whoever is not served in time is cut off."""
        if self._serving:
            await asyncio.wait(self._serving, timeout=OVERTIME_SECONDS)
        for task, client in self._serving.items():
            client.leave()
            task.cancel()

    def serve(self, client: Client, *, is_new: bool) -> None:
        self.clients.append(client)
        task = self.group.create_task(self._serve(client, is_new=is_new))
        self._serving[task] = client
        task.add_done_callback(self._serving.pop)

    async def _serve(self, client: Client, *, is_new: bool) -> None:
        scope, connection = client.request(is_new=is_new), client.connect()
        route = self.ask if scope["method"] == "POST" else self.resume
        await route(scope, connection.receive, connection.send)
        self.process.note(self.id, f"{client.submit.submission_id} is served")
