"""The names of all keys and channels of a pool. The braces keep a pool on one cluster slot."""

from common.messages import GatewayId, RequestId, WorkerId

FIXED = (
    "requests",
    "control",
    "lease",
    "workers",
    "gateways",
    "secret",
    "owners",
    "suspects",
    "shares",
    "status",
    "timeline",
    "dead",
)
PER_WORKER = ("steps", "results")
PER_REQUEST = ("journal",)
CHANNELS = ("tokens",)  # one a gateway


def gpu(device: str) -> bytes:
    """The lease of a GPU, in no pool: the workers of all pools share it."""
    return b"chairlift:gpu:" + device.encode()


class Keys:
    """ValueError for a pool that would make two keys the same, or leave the slot."""

    def __init__(self, pool: str) -> None:
        if not pool or any(character in "{}" or character.isspace() for character in pool):
            raise ValueError(f"a pool's name has no braces and no spaces: {pool!r}")
        self.prefix = f"chairlift:{{{pool}}}:"
        self.requests = self.of("requests")
        self.control = self.of("control")
        self.lease = self.of("lease")
        self.workers = self.of("workers")
        self.gateways = self.of("gateways")
        self.secret = self.of("secret")
        self.owners = self.of("owners")
        self.suspects = self.of("suspects")
        self.shares = self.of("shares")
        self.status = self.of("status")
        self.timeline = self.of("timeline")
        self.dead = self.of("dead")
        self._steps = self.of("steps:")
        self._results = self.of("results:")
        self._journal = self.of("journal:")
        self._tokens = self.of("tokens:")

    def of(self, name: str) -> bytes:
        return (self.prefix + name).encode()

    def steps(self, worker: WorkerId) -> bytes:
        return self._steps + worker.encode()

    def results(self, worker: WorkerId) -> bytes:
        """The worker's log."""
        return self._results + worker.encode()

    def journal(self, request: RequestId) -> bytes:
        return self._journal + request.encode()

    def tokens(self, gateway: GatewayId) -> bytes:
        """A channel, no key."""
        return self._tokens + gateway.encode()

    def journal_pattern(self) -> bytes:
        """Of all journals, for SCAN."""
        escaped = "".join(f"\\{c}" if c in "*?[]\\^-" else c for c in self.prefix)
        return f"{escaped}journal:*".encode()

    def request_of(self, journal: bytes) -> RequestId:
        return RequestId(journal.removeprefix(self._journal).decode(errors="replace"))

    def name_of(self, key: bytes) -> str:
        """Without the prefix."""
        return key.decode(errors="replace").removeprefix(self.prefix)
