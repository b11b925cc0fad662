"""Blocks of equal prefixes, shared: what a request need not compute, since another one did.

Only full blocks are shared, and never the one with the last known token, which has to be computed
to sample the next. So nobody writes into a shared block, and nothing is ever copied on write. A
block is known once the result of the step that filled it is applied, and its hash is chained: it
stands for the tenant, every token before it and its own. A hit is taken for equality: hashes have
128 bits and a key that nobody outside knows, so that nobody can aim at another one's blocks.
"""

from array import array
from collections.abc import Callable
from hashlib import blake2b

from common.messages import BlockId
from scheduler.core.prefix_index import PrefixIndex
from scheduler.core.request import Request

HASH_BYTES = 16
TOKEN_BYTES, TOKEN_MASK = 8, (1 << 63) - 1
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
        for content in self._hash(request, (len(request.tokens) - 1) // self.block_size):
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
        request.num_published = num_hit
        for content in request.hashes[num_hit:]:
            self.computing.setdefault(content, request)

    def publish(self, request: Request) -> None:
        """Its full blocks as far as it has computed: from now on others can share them."""
        first, full = request.num_published, request.num_computed // self.block_size
        hashes = self._hash(request, full)
        self.index.publish(request.block_table[first:full], hashes[first:full])
        self._resolve(request, hashes[first:full])
        request.num_published = full

    def withdraw(self, request: Request) -> None:
        """It computes no more: whoever waits for it goes on without."""
        self._resolve(request, request.hashes[request.num_published :])

    def distrust(self, request: Request) -> None:
        """It ended with an error: nobody else shall read what it wrote, nor what is like it."""
        for content in request.hashes:
            if (block := self.index.blocks.get(content)) is not None:
                self.index.forget(block)

    def _resolve(self, request: Request, contents: list[bytes]) -> None:
        computing = self.computing
        mine = [content for content in contents if computing.get(content) is request]
        for content in mine:
            del computing[content]
        self.on_resolved(mine)

    def _hash(self, request: Request, count: int) -> list[bytes]:
        """At least the hashes of its first `count` blocks, which are full."""
        if request.hashed_by != self._identity:
            request.hashes, request.hashed_by = [], self._identity
        hashes, size = request.hashes, self.block_size
        known = len(hashes)
        if known < count:
            parent = hashes[-1] if hashes else self._digest(request.tenant.encode())
            data = _as_bytes(request.tokens[known * size : count * size])
            for first in range(0, len(data), size * TOKEN_BYTES):
                parent = self._digest(parent + data[first : first + size * TOKEN_BYTES])
                hashes.append(parent)
        return hashes

    def _digest(self, content: bytes) -> bytes:
        digest = self._keyed.copy()
        digest.update(content)
        return digest.digest()


def _as_bytes(tokens: list[int]) -> bytes:
    try:
        return array("q", tokens).tobytes()
    except OverflowError:  # tokens of no vocabulary: whoever sent them hears of it elsewhere
        return array("q", [token & TOKEN_MASK for token in tokens]).tobytes()
