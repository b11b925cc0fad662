"""An HTTP server in front of OpenVINO GenAI's continuous batching: OpenAI's completions, greedy.

    VENV/bin/python -P openvino_server.py MODEL.gguf --tokenizer FOLDER --port PORT

Runs in the peer's own virtual environment and imports nothing of ours. FOLDER is the same model in
Hugging Face's layout; its tokenizer must be one of byte level. Everything happens in one thread:
OpenVINO keeps the interpreter's lock for the whole of a step, so that a second thread could do
nothing meanwhile and would only have to wait for its turn.
"""

import argparse
import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from tokenizers import Tokenizer

TURNS = 8  # of the event loop between steps: enough to take a connection, its request and a frame
CHARACTER_TOKENS = 4  # a character has at most so many bytes, hence tokens
DEFAULT_TOKENS = 16  # as OpenAI's API has it
FAILED = "error"

# New tokens, and why it was the end: length, stop, FAILED; or "".
News = tuple[list[int], str]
Queue = asyncio.Queue[News]


class RefusedError(Exception):
    """The client asked for what cannot be had; the text is for it."""


@dataclass(frozen=True)
class Wanted:
    prompt: list[int]
    max_tokens: int
    ignore_eos: bool
    stream: bool


@dataclass(frozen=True)
class Model:
    name: str
    tokenizer: Tokenizer
    context_length: int  # tokens of prompt and answer

    def parse(self, body: Any) -> Wanted:
        """Raises RefusedError."""
        if not isinstance(body, dict):
            raise RefusedError("the body must be a JSON object")
        if body.get("temperature"):
            raise RefusedError("answers are greedy: temperature must be 0")
        tokens = self._tokens(body.get("prompt"))
        max_tokens, room = body.get("max_tokens", DEFAULT_TOKENS), self.context_length - len(tokens)
        if type(max_tokens) is not int or not 0 < max_tokens <= room:
            raise RefusedError(f"max_tokens must be a number from 1 to {room} for this prompt")
        return Wanted(tokens, max_tokens, bool(body.get("ignore_eos")), bool(body.get("stream")))

    def _tokens(self, prompt: Any) -> list[int]:
        tokens = self.tokenizer.encode(prompt).ids if isinstance(prompt, str) else prompt
        size = self.tokenizer.get_vocab_size()
        if not isinstance(tokens, list) or not tokens:
            raise RefusedError("prompt must be a text or a list of token ids, and not empty")
        if not all(type(token) is int and 0 <= token < size for token in tokens):
            raise RefusedError(f"token ids must be numbers below {size}")
        return tokens


class Pipeline(Protocol):
    """What is needed of OpenVINO's, in plain values."""

    def add(self, number: int, wanted: Wanted) -> Any:
        """A handle of the request."""

    def is_busy(self) -> bool: ...

    def step(self) -> None: ...

    def read(self, handle: Any) -> News: ...

    def cancel(self, handle: Any) -> None: ...


class Batch:
    """All requests in progress; `run` computes them."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._asked: dict[int, tuple[Any, Queue]] = {}  # handle, and where its news go
        self._numbers = itertools.count()
        self._is_asked = asyncio.Event()

    @contextmanager
    def asked(self, wanted: Wanted, news: Queue) -> Iterator[None]:
        """The request is computed in here; whoever leaves before its end has it cancelled."""
        number = next(self._numbers)
        handle = self._pipeline.add(number, wanted)
        self._asked[number] = handle, news
        self._is_asked.set()
        try:
            yield
        finally:
            if self._asked.pop(number, None):
                self._pipeline.cancel(handle)

    async def run(self) -> None:
        """Step after step while there is anything to compute; never returns."""
        while True:
            await self._is_asked.wait()
            self._is_asked.clear()
            while self._pipeline.is_busy():
                self._pipeline.step()
                self._hand_out()
                for _ in range(TURNS):
                    await asyncio.sleep(0)

    def _hand_out(self) -> None:
        for number, (handle, news) in list(self._asked.items()):
            tokens, reason = self._pipeline.read(handle)
            if tokens or reason:
                news.put_nowait((tokens, reason))
            if reason:
                del self._asked[number]


class Text:
    """Tokens to text as they come; a character that is not complete waits for the rest of it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._held: list[int] = []

    def feed(self, tokens: list[int]) -> str:
        self._held += tokens
        text: str = self._tokenizer.decode(self._held)
        if text.endswith("\ufffd") and len(self._held) < CHARACTER_TOKENS:
            return ""
        self._held = []
        return text

    def rest(self) -> str:
        text: str = self._tokenizer.decode(self._held)
        return text


class Answer(StreamingResponse):
    """Asks when it begins. When its client goes it ends, which a body in one piece would not."""

    def __init__(self, batch: Batch, model: Model, wanted: Wanted) -> None:
        news: Queue = asyncio.Queue()
        body, kind = (frames, "text/event-stream") if wanted.stream else (whole, "application/json")
        super().__init__(body(model, wanted, news), media_type=kind)
        self._asked = batch.asked(wanted, news)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._asked:  # not in the body, which may stay behind unfinished
            await super().__call__(scope, receive, send)


def make_app(batch: Batch, model: Model) -> Starlette:
    async def health(_request: Request) -> Response:
        return Response("ok")

    async def models(_request: Request) -> Response:
        served = {"id": model.name, "object": "model", "owned_by": "openvino"}
        return JSONResponse({"object": "list", "data": [served]})

    async def completions(request: Request) -> Response:
        try:
            wanted = model.parse(json.loads(await request.body()))
        except (RefusedError, ValueError) as error:  # the latter: no JSON
            return JSONResponse(error_body(str(error)), 400)
        return Answer(batch, model, wanted)

    routes = [
        Route("/health", health),
        Route("/v1/models", models),
        Route("/v1/completions", completions, methods=["POST"]),
    ]
    return Starlette(routes=routes)


async def frames(model: Model, wanted: Wanted, news: Queue) -> AsyncIterator[bytes]:
    """A frame for each step that gave a token, then one with the reason and the usage."""
    text, count, reason = Text(model.tokenizer), 0, ""
    while not reason:
        tokens, reason = await news.get()
        count += len(tokens)
        if tokens:
            yield frame(completion(model, text.feed(tokens)))
    if reason == FAILED:
        yield frame(error_body("the request could not be computed"))
        return
    usage = usage_of(wanted, count)
    yield frame(completion(model, text.rest(), finish_reason=reason) | {"usage": usage})
    yield b"data: [DONE]\n\n"


async def whole(model: Model, wanted: Wanted, news: Queue) -> AsyncIterator[bytes]:
    """The body in one piece. A failure has its own body, for the status has been sent already."""
    found: list[int] = []
    reason = ""
    while not reason:
        tokens, reason = await news.get()
        found += tokens
    if reason == FAILED:
        yield json.dumps(error_body("the request could not be computed")).encode()
        return
    body = completion(model, model.tokenizer.decode(found), finish_reason=reason)
    yield json.dumps(body | {"usage": usage_of(wanted, len(found))}).encode()


def completion(model: Model, text: str, finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return {"object": "text_completion", "model": model.name, "choices": [choice]}


def usage_of(wanted: Wanted, count: int) -> dict[str, int]:
    asked = len(wanted.prompt)
    return {"prompt_tokens": asked, "completion_tokens": count, "total_tokens": asked + count}


def error_body(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


def frame(value: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


class OpenVino:
    """The pipeline itself. Its defaults stand but for what the options say."""

    def __init__(self, options: argparse.Namespace, end_tokens: list[int]) -> None:
        import openvino_genai as genai  # type: ignore[import-not-found]  # only in the peer's venv

        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = options.cache_gb
        scheduler.max_num_batched_tokens = options.step_tokens
        scheduler.max_num_seqs = options.sequences
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": options.threads} if options.threads else {}
        model = str(options.model)
        self._genai = genai
        self._ends = end_tokens
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def add(self, number: int, wanted: Wanted) -> Any:
        import numpy as np
        from openvino import Tensor  # type: ignore[import-not-found]

        config = self._genai.GenerationConfig()
        config.do_sample = False
        config.max_new_tokens = wanted.max_tokens
        config.ignore_eos = wanted.ignore_eos
        if not wanted.ignore_eos:
            config.eos_token_id = self._ends[0]
            config.stop_token_ids = set(self._ends)
        prompt = Tensor(np.array([wanted.prompt], dtype=np.int64))
        return self._pipeline.add_request(number, prompt, config)

    def is_busy(self) -> bool:
        return bool(self._pipeline.has_non_finished_requests())

    def step(self) -> None:
        self._pipeline.step()

    def read(self, handle: Any) -> News:
        tokens: list[int] = []
        status, reason = handle.get_status(), ""
        while handle.can_read():
            (output,) = handle.read().values()
            tokens += output.generated_ids
            is_full = output.finish_reason == self._genai.GenerationFinishReason.LENGTH
            reason = "length" if is_full else "stop"
        if status == self._genai.GenerationStatus.RUNNING:
            return tokens, ""
        is_whole = status == self._genai.GenerationStatus.FINISHED
        return tokens, reason if is_whole and reason else FAILED

    def cancel(self, handle: Any) -> None:
        handle.cancel()


async def serve(options: argparse.Namespace) -> None:
    """Ends when a step fails, too: then nothing would be answered any more."""
    folder = options.tokenizer
    ends = json.loads((folder / "generation_config.json").read_bytes())["eos_token_id"]
    config = json.loads((folder / "config.json").read_bytes())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = Model(options.model.stem, tokenizer, config["max_position_embeddings"])
    batch = Batch(OpenVino(options, ends if isinstance(ends, list) else [ends]))
    settings = uvicorn.Config(
        make_app(batch, model),
        port=options.port,
        lifespan="off",
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
    async with asyncio.TaskGroup() as tasks:
        steps = tasks.create_task(batch.run(), name="steps")
        await uvicorn.Server(settings).serve()
        steps.cancel()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a Hugging Face directory")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=0, help="default: as OpenVINO likes")
    parser.add_argument("--step-tokens", type=int, default=512, help="most of one step")
    parser.add_argument("--cache-gb", type=int, default=3)
    parser.add_argument("--sequences", type=int, default=32, help="most that are computed at once")
    return parser.parse_args()


if __name__ == "__main__":
    uvloop.run(serve(arguments()))
