"""A request's body, read within bounds, and the `Submit` made of it off the event loop.

Small bodies are parsed, rendered and tokenised in place, which is quicker than handing them to a
thread; larger ones go to a few threads. What all bodies that are being read or wait for a thread
hold together is bounded.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.datastructures import Headers
from starlette.types import Receive

from common.chat_template import ChatTemplate
from common.messages import SEED_BITS, GatewayId, SubmissionId, Submit
from common.tokenizer import Tokenizer
from gateway.admission import RefusedError
from gateway.errors import ApiError, BadRequestError
from gateway.openai import Arrival, Call, submit_of
from gateway.parameters import ApiLimits
from gateway.prompts import prompts_of

INLINE_BYTES = 2048  # under 1 ms on an idle core, of which the library takes most (2026-11)
MAX_VALUES = 400_000  # of JSON arrays and objects: parsing a million holds all threads for 50 ms
READ_SECONDS = 60.0  # for a body to arrive
HELD_BODIES = 8  # as many of the largest size are held at one time
MAX_TENANT = 128  # characters
ANONYMOUS = "anonymous"
BAD = "invalid_request_error"

Parse = Callable[[bytes, ApiLimits], Call]


class ClientLeftError(Exception):
    """The client left before its request was whole."""


@dataclass(frozen=True, slots=True)
class Model:
    """What a gateway knows of the model that it serves."""

    name: str
    created: int  # when this gateway loaded it, seconds since the epoch
    context_length: int  # prompt and answer together, tokens
    end_tokens: tuple[int, ...]
    tokenizer: Tokenizer
    template: ChatTemplate
    limits: ApiLimits


@dataclass(frozen=True, slots=True)
class Draft:
    """What is known of a request beside its body."""

    id_of: Callable[[str], SubmissionId]  # of a request of this tenant
    tenant: str | None  # None: the body's `user` says
    max_request_tokens: int
    deadline_seconds: float | None
    resumable: bool = False


class Intake:
    def __init__(self, model: Model, gateway: GatewayId, max_body_bytes: int, threads: int) -> None:
        self.model = model
        self.gateway = gateway
        self.max_body_bytes = max_body_bytes
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")
        self._held_bytes = 0

    async def submit_of(
        self, parse: Parse, headers: Headers, receive: Receive, draft: Draft
    ) -> Submit:
        """The request that the body asks for. Raises ApiError and ClientLeftError."""
        _check_content_type(headers)
        body = bytearray()
        try:
            await self._read(body, headers, receive)
            whole = bytes(body)
            if len(whole) <= INLINE_BYTES:
                return self._prepare(parse, whole, draft)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._prepare, parse, whole, draft)
        finally:
            self._held_bytes -= len(body)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _read(self, body: bytearray, headers: Headers, receive: Receive) -> None:
        if int(headers.get("content-length", "0")) > self.max_body_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(READ_SECONDS):
                while await self._read_part(body, receive):
                    pass
        except TimeoutError:
            raise ApiError("The body took too long to arrive.", status=408, kind=BAD) from None

    async def _read_part(self, body: bytearray, receive: Receive) -> bool:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        part: bytes = message.get("body", b"")
        body += part
        self._held_bytes += len(part)
        if len(body) > self.max_body_bytes:
            raise self._too_large()
        if self._held_bytes > HELD_BODIES * self.max_body_bytes:
            raise RefusedError("Too many large requests arrive at once.", 429, "too_large", 1)
        return bool(message.get("more_body", False))

    def _prepare(self, parse: Parse, body: bytes, draft: Draft) -> Submit:
        model, most = self.model, draft.max_request_tokens
        _check_values(body, max(MAX_VALUES, 2 * most))
        call = parse(body, model.limits)
        tenant = draft.tenant or (call.params.user or ANONYMOUS)[:MAX_TENANT]
        arrival = Arrival(
            submission_id=draft.id_of(tenant),
            gateway=self.gateway,
            tenant=tenant,
            seed=secrets.randbits(SEED_BITS),
            created=int(datetime.now(UTC).timestamp()),
            digest=hashlib.sha256(body).hexdigest(),
            deadline_seconds=draft.deadline_seconds,
            resumable=draft.resumable,
        )
        prompts = prompts_of(call, model.tokenizer, model.template, most)
        ends = model.end_tokens
        return submit_of(call, prompts, arrival, end_tokens=ends, max_request_tokens=most)

    def _too_large(self) -> ApiError:
        message = f"The body is larger than {self.max_body_bytes} bytes."
        return ApiError(message, status=413, kind=BAD, code="body_too_large")


def _check_values(body: bytes, most: int) -> None:
    """Commas are counted, those of texts too: a text of so many would not fit either."""
    if len(body) > most and body.count(b",") > most:
        raise BadRequestError(f"The body has more than {most} values.", code="too_many_values")


def _check_content_type(headers: Headers) -> None:
    """JSON, or nothing said. Other types are what a web page may send without being asked."""
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"The body must be application/json, not {kind[:100]!r}."
        raise ApiError(message, status=415, kind=BAD, code="unsupported_media_type")
