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
        self.computing: dict[bytes, Request] = {}  # by whom
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
        """The last of the blocks after its first `num_hit` that others compute right now."""
        last = num_hit
        while last < len(request.hashes) and request.hashes[last] in self.computing:
            last += 1
        saved = (last - num_hit) * self.block_size
        pending = len(request.tokens) - num_hit * self.block_size
        return request.hashes[last - 1] if saved and saved >= WORTH_WAITING * pending else None

    def expect(self, request: Request, num_hit: int) -> None:
        """It is admitted with its first `num_hit` blocks, and will compute the others."""
        hashes = self._hash(request, len(request.tokens) // self.block_size)
        self._published(request, num_hit)
        computing = self.computing
        for content in hashes[num_hit:]:
            computing.setdefault(content, request)

    def publish(self, request: Request) -> None:
        """Others can share, from now on, what it has computed of what it was admitted with."""
        full = min(request.num_computed // self.block_size, len(request.hashes))
        self._tell(request, full)
        self._published(request, full)

    def withdraw(self, request: Request) -> None:
        """It computes no more: its answer can be shared, and whoever waits for it goes on."""
        full = request.num_computed // self.block_size
        self._hash(request, full)
        self._tell(request, full)
        self._resolve(request, request.hashes[full:])
        request.publish_at = NEVER

    def distrust(self, request: Request) -> None:
        """It ended with an error: nobody else shall read what it wrote, nor what is like it."""
        request.num_computed = 0  # or its leaving would make it known
        known = self.index.blocks
        self.index.forget([known[content] for content in request.hashes if content in known])

    def _tell(self, request: Request, full: int) -> None:
        """Its first `full` blocks hold what their hashes say."""
        first = request.num_published
        hashes = request.hashes[first:full]
        self.index.publish(request.block_table[first:full], hashes)
        self._resolve(request, hashes)

    def _published(self, request: Request, count: int) -> None:
        request.num_published = count
        is_last = count >= len(request.hashes)
        request.publish_at = NEVER if is_last else (count + 1) * self.block_size

    def _resolve(self, request: Request, contents: list[bytes]) -> None:
        computing = self.computing
        mine = [content for content in contents if computing.get(content) is request]
        for content in mine:
            del computing[content]
        self.on_resolved(mine)

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
