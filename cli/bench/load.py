"""Puts load on a server: requests as they become due, or as places become free."""

import asyncio
import json
import random
import time
from contextlib import nullcontext
from dataclasses import asdict

from cli.bench.http import ExchangeError, Server, exchange
from cli.bench.options import Options
from cli.bench.report import Report, Sample
from cli.bench.stream import TokenStream, error_kind

DEFAULT_CONCURRENCY = 16
MODEL_SECONDS = 30.0  # to say which model is served
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "life", "child", "world")


class BenchError(Exception):
    """Nothing can be measured; the text says why."""


async def run(options: Options) -> Report:
    """All requests, warm-up first. A request that fails is a sample with an error.

    BenchError if the server does not say which model it serves, ValueError for a bad url.
    """
    server = Server.parse(options.url, options.api_key)
    load = Load(options, server, options.model or await first_model(server))
    await load.run(range(-options.warmup, 0), rate=None)
    samples = await load.run(range(options.requests), options.rate)
    shown = {name: value for name, value in asdict(options).items() if name != "api_key"}
    return Report(tuple(samples), shown | {"model": load.model})


async def first_model(server: Server) -> str:
    body = bytearray()
    try:
        async with asyncio.timeout(MODEL_SECONDS):
            status = await exchange(server, server.request("GET", "/v1/models"), body.extend)
        if status != 200:
            raise BenchError(f"/v1/models: HTTP {status}; name the model with --model")
        return str(json.loads(body)["data"][0]["id"])
    except TimeoutError:
        raise BenchError(f"{server.host}:{server.port} does not answer") from None
    except (OSError, ExchangeError) as error:
        raise BenchError(f"{server.host}:{server.port}: {error}") from error
    except (ValueError, LookupError, TypeError):
        raise BenchError("/v1/models names no model; name it with --model") from None


class Load:
    def __init__(self, options: Options, server: Server, model: str) -> None:
        self.options = options
        self.server = server
        self.model = model

    async def run(self, numbers: range, rate: float | None) -> list[Sample]:
        """One request for each number, which also is the seed of its prompt."""
        zero = time.perf_counter()
        limit = self.options.concurrency or (None if rate else DEFAULT_CONCURRENCY)
        places = asyncio.Semaphore(limit) if limit else nullcontext()
        arrivals = random.Random(self.options.seed)
        requests = [self._request(number) for number in numbers]
        due = zero
        async with asyncio.TaskGroup() as tasks:
            started = []
            for request in requests:
                if rate:
                    due += arrivals.expovariate(rate)
                    await asyncio.sleep(max(due - time.perf_counter(), 0))
                arrived = due if rate else None
                started.append(tasks.create_task(self._sample(request, places, zero, arrived)))
        return [task.result() for task in started]

    async def _sample(
        self,
        request: bytes,
        places: "asyncio.Semaphore | nullcontext[None]",
        zero: float,
        arrived: float | None,
    ) -> Sample:
        """`arrived` None: when it gets its place."""
        async with places:
            start = time.perf_counter() if arrived is None else arrived
            stream = TokenStream(time.perf_counter)
            error = await self._ask(request, stream)
        stream.close()
        # Not when this task gets its turn: that is the client's own delay.
        end = time.perf_counter() if error else stream.last
        error = error or stream.error or ("" if stream.is_done else "stream ends without [DONE]")
        return Sample(
            start=start - zero,
            end=end - zero,
            prompt_tokens=stream.usage.get("prompt_tokens", 0),
            output_tokens=stream.usage.get("completion_tokens", len(stream.times)),
            frames=tuple(moment - start for moment in stream.times),
            error=error,
        )

    async def _ask(self, request: bytes, stream: TokenStream) -> str:
        """The kind of error; empty: none."""
        start = bytearray()  # of the body, for errors that come instead of a stream

        def on_body(data: bytes) -> None:
            if len(start) < 4096:
                start.extend(data[:4096])
            stream.feed(data)

        try:
            async with asyncio.timeout(self.options.timeout_seconds):
                status = await exchange(self.server, request, on_body)
        except TimeoutError:
            return "timeout"
        except ExchangeError as error:
            return str(error)
        except OSError as error:
            return f"connection: {type(error).__name__}"
        return "" if status == 200 else f"HTTP {status} {_body_kind(bytes(start))}".rstrip()

    def _request(self, number: int) -> bytes:
        options = self.options
        body = {
            "model": self.model,
            "max_tokens": options.output_tokens,
            "temperature": options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if options.ignore_eos else {}),
            **make_prompt(options, number),
        }
        path = "/v1/chat/completions" if options.endpoint == "chat" else "/v1/completions"
        return self.server.request("POST", path, json.dumps(body).encode())


def make_prompt(options: Options, number: int) -> dict[str, object]:
    """Random, and the same for the same seed and number, so that runs can be compared."""
    source = random.Random(f"{options.seed}.{number}")
    if options.endpoint == "chat" or options.text:
        text = " ".join(source.choices(WORDS, k=options.prompt_tokens))
        if options.endpoint == "chat":
            return {"messages": [{"role": "user", "content": text}]}
        return {"prompt": text}
    return {"prompt": source.choices(range(*options.vocabulary), k=options.prompt_tokens)}


def _body_kind(body: bytes) -> str:
    try:
        return error_kind(json.loads(body))
    except ValueError:
        return ""
