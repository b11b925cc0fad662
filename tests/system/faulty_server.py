"""Redis in memory that keeps what was synced, forgets the rest in a crash, and keeps books.

With `appendfsync always` the server syncs before it answers or publishes, so that whatever anybody
has seen of a write is on disk, and a crash loses nothing of it. With `everysec` a crash brings back
what was on disk at the last sync. Both are what `redis.md`'s measurements of real servers say.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from common import codec, entries
from common.bus import EntryId, Fields
from common.memory_server import MemoryServer, Stream
from common.messages import (
    Ended,
    GatewayId,
    Notice,
    RequestId,
    SubmissionId,
    Submit,
    TokenBatch,
)

Note = Callable[[str, str], None]  # (name, what): keeps the trace

SYNC_SECONDS = 1.0  # with everysec


@dataclass
class Books:
    """What was committed, and what ended: from then on it exists, and none may come twice."""

    submits: dict[SubmissionId, Submit] = field(default_factory=dict)
    committed: dict[RequestId, dict[int, int]] = field(default_factory=dict)
    ended: dict[RequestId, Ended] = field(default_factory=dict)
    is_off: bool = False  # the server has lost what was answered: it may happen again

    def note(self, key: str, fields: Fields) -> None:
        if b"result" in fields:
            for sampled in entries.read_result(fields).sampled:
                tokens = self.committed.setdefault(sampled.request_id, {})
                assert self.is_off or sampled.request_id not in self.ended, f"{sampled} is late"
                assert self.is_off or sampled.position not in tokens, f"{sampled} comes twice"
                tokens[sampled.position] = sampled.token
        elif b"submit" in fields:
            submit = entries.read_submit(fields)
            self.submits[submit.submission_id] = submit

    def note_end(self, request: RequestId, stream: Stream) -> None:
        """All that was committed stands in the journal when its end does."""
        journal = entries.read_journal(request, stream.after("0-0"))
        assert journal.end is not None
        if not self.is_off:
            assert request not in self.ended, f"{request} ends twice"
            assert journal.head, f"{request} ends without a head"
            committed = self.committed.get(request, {})
            assert dict(enumerate(journal.tokens)) == committed, f"{journal}, {committed}"
        self.ended[request] = journal.end

    def copy(self) -> "Books":
        committed = {request: dict(tokens) for request, tokens in self.committed.items()}
        return Books(dict(self.submits), committed, dict(self.ended), self.is_off)


@dataclass
class Image:
    """What is on disk."""

    streams: dict[str, Stream]
    hashes: dict[str, dict[bytes, bytes]]
    expiring: dict[str, float]
    books: Books


class FaultyServer(MemoryServer):
    """`is_always`: the sync setting. `losses`: share of notices that do not arrive, or twice."""

    def __init__(self, rng: random.Random, *, is_always: bool, note: Note) -> None:
        super().__init__()
        self.note = note
        self.rng = rng
        self.is_always = is_always
        self.losses = 0.0
        self.delay_seconds = 0.0  # of a notice, at most
        self.books = Books()
        self.crashes = 0
        self.is_up = asyncio.Event()
        self.is_up.set()
        self.unheard: set[GatewayId] = set()  # gateways that are cut off
        self.at_takeover: list[Callable[[], None]] = []  # done once, when a lease is taken
        self._image = self._copy()

    def take_over(self) -> None:
        acts, self.at_takeover = self.at_takeover, []
        for act in acts:
            act()

    # --- Books and disk ---------------------------------------------------------------------

    @property
    def has_lost(self) -> bool:
        return self.books.is_off

    def add(self, key: str, entry: EntryId, fields: Fields) -> bool:
        added = super().add(key, entry, fields)
        if added:
            self.books.note(key, fields)
            if b"reason" in fields:
                request = RequestId(key.removeprefix("journal:"))
                self.books.note_end(request, self.stream(key))
                self.note("end", self.books.ended[request].reason)
        return added

    def crash(self, down_seconds: float) -> None:
        """The power fails, or somebody kills it; it comes back by itself."""
        self.crashes += 1
        self.note("server", "crashes")
        self.is_up.clear()
        if not self.is_always:
            self._restore(self._image)
        asyncio.get_running_loop().call_later(down_seconds, self._start)

    def _start(self) -> None:
        self.is_up.set()
        for gateway in list(self._subscribers):
            self.resubscribe(gateway)

    async def live(self) -> None:
        """Sync now and then, and let keys expire."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SYNC_SECONDS * self.rng.uniform(0.5, 1.5))
            if self.is_up.is_set() and not self.is_always:
                self._image = self._copy()
            for key in [key for key, when in self.expiring.items() if when <= loop.time()]:
                self.streams.pop(key, None)
                del self.expiring[key]

    def expire_in(self, key: str, seconds: float) -> None:
        if key in self.streams:
            self.expiring[key] = asyncio.get_running_loop().time() + seconds

    def _copy(self) -> Image:
        return Image(
            {key: Stream([*s.ids], [*s.fields], s.last) for key, s in self.streams.items()},
            {key: dict(fields) for key, fields in self.hashes.items()},
            dict(self.expiring),
            self.books.copy(),
        )

    def _restore(self, image: Image) -> None:
        before = (self.streams, self.hashes)
        self.streams, self.hashes = image.streams, image.hashes
        self.expiring, self.books = image.expiring, image.books
        self._image = self._copy()
        if before != (self.streams, self.hashes):
            self.note_loss()

    def note_loss(self) -> None:
        """From now on nobody can keep the promises; what is left is told in docs/reliability.md."""
        self.note("server", "has lost something")
        self.books.is_off = True

    # --- Channels ---------------------------------------------------------------------------

    def publish(self, gateway: GatewayId, message: bytes) -> None:
        """Lost, twice, late, and late ones in any order."""
        if gateway in self.unheard:
            self.note(gateway, "hears nothing")
            return
        notice = codec.decode_notice(message)
        if isinstance(notice, TokenBatch):
            self.check_written(notice)
        for queue in list(self._subscribers.get(gateway, ())):
            copies = self._num_copies()
            if copies != 1:
                self.note(gateway, "misses a notice" if copies == 0 else "hears a notice twice")
            for _ in range(copies):
                self._deliver(queue, notice)

    def check_written(self, notice: TokenBatch) -> None:
        """Nobody hears of a token that a crash could take back."""
        for sampled in notice.sampled:
            known = self.books.committed.get(sampled.request_id, {})
            assert self.has_lost or known.get(sampled.position) == sampled.token, (
                f"{sampled} is not written yet"
            )

    def _num_copies(self) -> int:
        return self.rng.choice((0, 2)) if self.rng.random() < self.losses else 1

    def _deliver(self, queue: "asyncio.Queue[Notice]", notice: Notice) -> None:
        if self.delay_seconds:
            delay = self.delay_seconds * self.rng.random()
            self.note("server", "a notice is late")
            asyncio.get_running_loop().call_later(delay, queue.put_nowait, notice)
        else:
            queue.put_nowait(notice)
