"""Puts load on a server: requests as they become due, or as places become free."""

import asyncio
import json
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

from cli.bench.http import ExchangeError, Server, exchange
from cli.bench.options import DEFAULT_CONCURRENCY, Options
from cli.bench.prompts import prompt_of, text_of
from cli.bench.report import Report, Sample, Targets
from cli.bench.stream import TokenStream, error_kind
from cli.bench.workload import Conversation, Turn, WorkloadError, conversations, made, warm_up
from common.traces import TraceError

MODEL_SECONDS = 30.0  # to say which model is served
Ready = tuple[Conversation, bytes]  # with its first request as it is sent
clock = time.perf_counter


class BenchError(Exception):
    """Nothing can be measured; the text says why."""


async def run(options: Options) -> Report:
    """All requests, warm-up first. A request that fails is a sample with an error.

    BenchError if the server does not say which model it serves or the trace is none, ValueError
    for a bad url.
    """
    server = Server.parse(options.url, options.api_key)
    load = Load(options, server, options.model or await first_model(server))
    try:
        await load.as_places_free(map(load.ready, warm_up(options)), None)
        ready = map(load.ready, conversations(options))
        asked = ready if options.is_endless else list(ready)  # made before, not meanwhile
    except (TraceError, WorkloadError) as error:
        raise BenchError(str(error)) from error
    began, worked = clock(), time.process_time()
    if options.has_times:
        samples = await load.as_due(asked)
    else:
        samples = await load.as_places_free(asked, options.duration)
    busy = (time.process_time() - worked) / (clock() - began)
    shown = {name: value for name, value in asdict(options).items() if name != "api_key"}
    return Report(tuple(samples), shown | {"model": load.model}, Targets.of(options), busy)


def make_prompt(options: Options, number: int) -> dict[str, object]:
    """Random, and the same for the same seed and number, so that runs can be compared."""
    return prompt_of(options, made(options, number, None).turns[0].parts)


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
        self.model = model
        self._server = server

    def ready(self, conversation: Conversation) -> Ready:
        return conversation, self._request(conversation.turns[0], ())

    async def as_places_free(self, asked: Iterable[Ready], duration: float | None) -> list[Sample]:
        """`duration`: seconds in which conversations may begin."""
        zero, source = clock(), iter(asked)
        samples: list[Sample] = []

        async def place() -> None:
            for ready in source:
                if duration and clock() - zero > duration:
                    return
                samples.extend(await self._converse(ready, zero))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.options.limit or DEFAULT_CONCURRENCY):
                tasks.create_task(place())
        return sorted(samples, key=lambda sample: (sample.number, sample.turn))

    async def as_due(self, asked: Iterable[Ready]) -> list[Sample]:
        zero, limit = clock(), self.options.limit
        places = asyncio.Semaphore(limit) if limit else nullcontext()
        samples: list[Sample] = []

        async def placed(ready: Ready, arrived: float, late: float) -> None:
            async with places:
                samples.extend(await self._converse(ready, zero, arrived, late))

        async with asyncio.TaskGroup() as tasks:
            for ready in asked:
                due = zero + (ready[0].at or 0.0)
                await asyncio.sleep(max(due - clock(), 0))
                arrived = clock()  # the client's own delay is told apart from the server's
                tasks.create_task(placed(ready, arrived, arrived - due))
        return sorted(samples, key=lambda sample: (sample.number, sample.turn))

    async def _converse(
        self, ready: Ready, zero: float, arrived: float | None = None, late: float = 0.0
    ) -> list[Sample]:
        """Turn after turn until one fails. `arrived` None: now."""
        conversation, request = ready
        samples: list[Sample] = []
        history: list[tuple[str, str]] = []
        goes_on = len(conversation.turns) > 1
        for index, turn in enumerate(conversation.turns):
            if index:
                request, arrived, late = self._request(turn, history), None, 0.0
            stream = TokenStream(clock, keeps_frames=goes_on)
            start = clock() if arrived is None else arrived
            error = await self._ask(request, stream)
            sample = _sample(stream, error, start, zero)
            which: dict[str, Any] = {"number": conversation.number, "turn": index, "late": late}
            samples.append(replace(sample, asked_tokens=turn.output_tokens, **which))
            if sample.error:
                break
            if goes_on:
                history.append((text_of(turn.parts), stream.text()))
        return samples

    async def _ask(self, request: bytes, stream: TokenStream) -> str:
        """The kind of error; empty: none."""
        start = bytearray()  # of the body, for errors that come instead of a stream

        def on_body(data: bytes) -> None:
            if len(start) < 4096:
                start.extend(data[:4096])
            stream.feed(data)

        try:
            async with asyncio.timeout(self.options.timeout_seconds):
                status = await exchange(self._server, request, on_body)
        except TimeoutError:
            return "timeout"
        except ExchangeError as error:
            return str(error)
        except OSError as error:
            return f"connection: {type(error).__name__}"
        return "" if status == 200 else f"HTTP {status} {_body_kind(bytes(start))}".rstrip()

    def _request(self, turn: Turn, history: Iterable[tuple[str, str]]) -> bytes:
        options = self.options
        body = {
            "model": self.model,
            "max_tokens": turn.output_tokens,
            "temperature": options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if options.ignore_eos else {}),
            **prompt_of(options, turn.parts, history),
        }
        path = "/v1/chat/completions" if options.endpoint == "chat" else "/v1/completions"
        return self._server.request("POST", path, json.dumps(body).encode())


def _sample(stream: TokenStream, error: str, start: float, zero: float) -> Sample:
    stream.close()
    # Not when the task gets its turn: that is the client's own delay.
    end = clock() if error else stream.last
    error = error or stream.error or ("" if stream.is_done else "stream ends without [DONE]")
    return Sample(
        start=start - zero,
        end=end - zero,
        prompt_tokens=stream.usage.get("prompt_tokens", 0),
        output_tokens=stream.usage.get("completion_tokens", len(stream.times)),
        frames=tuple(moment - start for moment in stream.times),
        error=error,
        has_usage=bool(stream.usage),
    )


def _body_kind(body: bytes) -> str:
    try:
        return error_kind(json.loads(body))
    except ValueError:
        return ""
