"""A client of experiments: streams of tokens from a real server, and when each token came."""

import asyncio
import json
import random
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from cli.bench import first_model
from cli.bench.http import Server, exchange
from cli.bench.options import Options
from cli.bench.stream import TokenStream
from cli.lab.errors import LabError

LIMIT_SECONDS = 300.0
VOCABULARY = Options.vocabulary
T = TypeVar("T")


class Client:
    def __init__(self, server: Server, model: str) -> None:
        self._server = server
        self._model = model

    @classmethod
    async def connect(cls, url: str) -> "Client":
        server = Server.parse(url)
        return cls(server, await first_model(server))

    async def ask(self, prompt: Sequence[int], max_tokens: int, stream: TokenStream) -> None:
        """Greedy, and exactly so many tokens. LabError if the answer is not complete."""
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
        }
        request = self._server.request("POST", "/v1/completions", json.dumps(body).encode())
        async with asyncio.timeout(LIMIT_SECONDS):
            status = await exchange(self._server, request, stream.feed)
        stream.close()
        if status != 200 or stream.error or not stream.is_done:
            raise LabError(f"a request failed: HTTP {status} {stream.error}".rstrip())


def run(work: Coroutine[Any, Any, T]) -> T:
    """In a loop of its own. LabError if one of its tasks raises that."""
    try:
        return asyncio.run(work)
    except ExceptionGroup as group:
        told, _ = group.split(LabError)
        if told is None:
            raise
        first: Exception = told
        while isinstance(first, ExceptionGroup):  # groups within groups
            first = first.exceptions[0]
        raise LabError(str(first)) from None


def new_stream() -> TokenStream:
    return TokenStream(time.perf_counter)


def prompt(seed: str, num_tokens: int) -> list[int]:
    return random.Random(seed).choices(range(*VOCABULARY), k=num_tokens)
