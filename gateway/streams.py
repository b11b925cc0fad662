"""Requests that were accepted before, wherever that was: found by their id, from their journals.

An id that no journal knows may still be that of a request which no scheduler has read yet. So it is
called unknown only once a scheduler has led for a moment since the question came.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.bus import GatewayBus, UnavailableError
from common.messages import Journal, SubmissionId, request_id
from gateway.admission import unavailable
from gateway.errors import ApiError, BadRequestError
from gateway.head import Head
from gateway.health import Progress

READ_SECONDS = 10.0  # for the bus to answer: a client waits
SURE_SECONDS = 0.5  # of a leader after which it has read what came before the question
PATIENCE_SECONDS = 10.0  # for a leader
ACCEPT_SECONDS = 30.0  # for a leader to take up what was submitted
PAUSE_SECONDS = 0.005  # between two looks: doubled each time up to
MAX_PAUSE_SECONDS = 0.1
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Stored:
    """What the journals of a submission say."""

    submission: SubmissionId
    tenant: str
    digest: str  # of the body
    frame: Mapping[str, Any]
    head: Head  # the frame, typed
    journals: Sequence[Journal]  # by choice


class Streams:
    def __init__(self, bus: GatewayBus, progress: Progress) -> None:
        self.bus = bus
        self.progress = progress
        self._secret = b""

    async def secret(self) -> bytes:
        """That all gateways of the pool share; the first one that is asked draws it. BusError."""
        if not self._secret:
            async with _bounded():
                candidate = secrets.token_bytes(SECRET_BYTES).hex()
                self._secret = await self.bus.secret(candidate.encode())
        return self._secret

    async def look(self, submission: SubmissionId) -> Stored | None:
        """What stands there now; None: nothing, or its head cannot be read. BusError."""
        async with _bounded():
            first = await self.bus.journal(request_id(submission, 0))
            if first.head is None:
                return None
            head = Head.of(first.head.frame)
            others = [
                await self.bus.journal(request_id(submission, choice))
                for choice in range(1, head.num_choices)
            ]
        stands = first.head
        return Stored(
            submission, stands.tenant, stands.digest, stands.frame, head, [first, *others]
        )

    async def find(self, submission: SubmissionId, tenant: str | None) -> Stored:
        """A request of this tenant; of anybody, if None. ApiError: there is none. BusError."""
        began_at = time.monotonic()
        pauses = _Pauses()
        while True:
            stored = await self.look(submission)
            if stored is not None and tenant in {None, stored.tenant}:
                return stored
            if self._would_be_known(began_at):
                raise unknown()
            await pauses.wait()

    async def accepted(self, submission: SubmissionId) -> Stored:
        """What counts of a submission that was just made, maybe by several gateways at once.

        RefusedError if no scheduler takes it up. BusError.
        """
        began_at = time.monotonic()
        pauses = _Pauses()
        while (stored := await self.look(submission)) is None:
            if time.monotonic() - began_at >= ACCEPT_SECONDS:
                raise unavailable("No scheduler has taken up the request yet.", "no_scheduler")
            await pauses.wait()
        return stored

    def _would_be_known(self, began_at: float) -> bool:
        beat_at = self.progress.beat_at
        has_led = beat_at is not None and beat_at >= began_at + SURE_SECONDS
        return has_led or time.monotonic() - began_at >= PATIENCE_SECONDS


def unknown() -> ApiError:
    return BadRequestError(
        "There is no such stream: its id is wrong, or it ended too long ago to be stored.",
        code="stream_not_found",
        status=404,
    )


class _Pauses:
    def __init__(self) -> None:
        self._seconds = PAUSE_SECONDS

    async def wait(self) -> None:
        await asyncio.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, MAX_PAUSE_SECONDS)


@contextlib.asynccontextmanager
async def _bounded() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(READ_SECONDS):
            yield
    except TimeoutError:
        raise UnavailableError(f"no answer within {READ_SECONDS:.0f} s") from None
