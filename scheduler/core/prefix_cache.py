"""Blocks of equal prefixes, shared: what a request need not compute, since another one did.

Only full blocks are shared, and never the one with the last known token, which has to be computed
to sample the next. So nobody writes into a shared block, and nothing is ever copied on write. A
block is known once the result of the step that filled it is applied, or, where it holds tokens of
an answer, once its request leaves its row: an answer is shared by what comes after it, and to tell
of its blocks all at once costs a fraction. Hashes are chained: one stands for the tenant, every
token before it and its own. A hit is taken for equality: hashes have 128 bits and a key that nobody
outside knows, so that nobody can aim at another one's blocks.
"""

from array import array
from collections.abc import Callable
from hashlib import blake2b

from common.messages import BlockId
from scheduler.core.prefix_index import PrefixIndex
from scheduler.core.request import NEVER, Request

HASH_BYTES = 16
# A request waits for another one that computes its prefix if that saves it so much of its work.
# Less is not worth a step's time: chat templates alone make all prompts of a model begin alike.
WORTH_WAITING = 0.25


class PrefixCache:
    def __init__(self, index: PrefixIndex, block_size: int, key: bytes) -> None:
        self.index = index
        self.block_size = block_size
        self.key = key
        self._identity = (key, block_size)  # what hashes depend on
        self._keyed = blake2b(digest_size=HASH_BYTES, key=key)
        # Who computes blocks that others may want, by the first of its blocks that is not done.
        self.computing: dict[bytes, Request] = {}
        self.on_resolved: Callable[[list[bytes]], None] = lambda _: None  # computed, or given up

    def match(self, request: Request) -> list[BlockId]:
        """The blocks that hold its first tokens."""
        found: list[BlockId] = []
        blocks = self.index.blocks
        count = (len(request.tokens) - 1) // self.block_size
        for content in self._hash(request, count)[:count]:  # it may have hashes of more
            block = blocks.get(content)
            if block is None:
                break
            found.append(block)
        return found

    def worth_waiting(self, request: Request, num_hit: int) -> bytes | None:
        """The last of the blocks after its first `num_hit` that another one computes right now."""
        mine = request.hashes[num_hit:]
        other = self.computing.get(mine[0]) if mine else None
        if other is None:
            return None
        num_equal = 0
        for content, its in zip(mine, other.hashes[other.num_published :], strict=False):
            if content != its:
                break
            num_equal += 1
        saved = num_equal * self.block_size
        pending = len(request.tokens) - num_hit * self.block_size
        return mine[num_equal - 1] if saved >= WORTH_WAITING * pending else None

    def who_computes(self, content: bytes) -> Request | None:
        """Whom one waits for that wants this block; None where that one is not listed any more."""
        for request in self.computing.values():
            if content in request.hashes[request.num_published :]:
                return request
        return None

    def expect(self, request: Request, num_hit: int) -> None:
        """It is admitted with its first `num_hit` blocks, and will compute the others."""
        self._hash(request, len(request.tokens) // self.block_size)
        self._go_on(request, num_hit)

    def publish(self, request: Request) -> None:
        """Others can share, from now on, what it has computed of what it was admitted with."""
        full = min(request.num_computed // self.block_size, len(request.hashes))
        self._stop(request)
        self._tell(request, full)
        self._go_on(request, full)

    def withdraw(self, request: Request) -> None:
        """It computes no more: its answer can be shared, and whoever waits for it goes on."""
        full = request.num_computed // self.block_size
        self._stop(request)
        self._hash(request, full)
        self._tell(request, full)
        self.on_resolved(request.hashes[full:])
        request.publish_at = NEVER

    def distrust(self, request: Request) -> None:
        """It ended with an error: nobody else shall read what it wrote, nor what is like it."""
        request.num_computed = 0  # or its leaving would make it known
        known = self.index.blocks
        self.index.forget([known[content] for content in request.hashes if content in known])

    def _go_on(self, request: Request, num_published: int) -> None:
        """The blocks after its first `num_published` are what it computes now."""
        request.num_published, request.publish_at = num_published, NEVER
        if num_published < len(request.hashes):
            request.publish_at = (num_published + 1) * self.block_size
            self.computing.setdefault(request.hashes[num_published], request)

    def _stop(self, request: Request) -> None:
        first, hashes = request.num_published, request.hashes
        if first < len(hashes) and self.computing.get(hashes[first]) is request:
            del self.computing[hashes[first]]

    def _tell(self, request: Request, full: int) -> None:
        """Its first `full` blocks hold what their hashes say."""
        first = request.num_published
        hashes = request.hashes[first:full]
        self.index.publish(request.block_table[first:full], hashes)
        self.on_resolved(hashes)

    def _hash(self, request: Request, count: int) -> list[bytes]:
        """At least the hashes of its first `count` blocks, which are full."""
        if request.hasher is None or request.hashed_by != self._identity:
            request.hashes, request.hashed_by = [], self._identity
            request.hasher = self._keyed.copy()
            request.hasher.update(self._digest(request.tenant.encode()))
        hashes, known = request.hashes, len(request.hashes)
        if known < count:
            size = self.block_size
            data = self._as_bytes(request.tokens[known * size : count * size])
            stride = len(data) // (count - known)  # bytes of a block
            update, digest = request.hasher.update, request.hasher.digest
            for first in range(0, len(data), stride):
                update(data[first : first + stride])
                hashes.append(digest())
        return hashes

    def _as_bytes(self, tokens: list[int]) -> bytes:
        """All tokens by the same number of bytes, so that no two lists give the same."""
        try:
            return array("i", tokens).tobytes()
        except OverflowError:  # tokens of no vocabulary: whoever sent them hears of it elsewhere
            return b"".join(self._digest(str(token).encode()) for token in tokens)

    def _digest(self, content: bytes) -> bytes:
        digest = self._keyed.copy()
        digest.update(content)
        return digest.digest()
