"""Which gateways live, and which requests nobody will come back for; pure.

A request is *alone* while no gateway that lives shows it: all are dead, or its last client left.
"""

from collections.abc import Iterable, Mapping

from common.messages import GatewayId, RequestId, Submit
from scheduler.ledger import Account, Ledger

FORGET_SECONDS = 60.0  # a dead gateway is forgotten, and its field goes, after so long


class Viewers:
    def __init__(self, beat_seconds: float, grace_seconds: float, resume_seconds: float) -> None:
        self.beat_seconds = beat_seconds  # a beat that stands still so long: the gateway is dead
        self.grace_seconds = grace_seconds  # how long its clients have to turn up elsewhere
        self.resume_seconds = resume_seconds  # how long those have that said they might come back
        self._beats: dict[GatewayId, int] = {}
        self._since: dict[GatewayId, float] = {}  # when the beat last moved
        self._alone_since: dict[RequestId, float] = {}

    def watch(self, beats: Mapping[GatewayId, int], now: float) -> list[GatewayId]:
        """Take in what `gateways` says. Returns those whose field may be dropped."""
        for gateway, beat in beats.items():
            if self._beats.get(gateway) != beat:
                self._beats[gateway], self._since[gateway] = beat, now
        for gateway in [gateway for gateway in self._beats if gateway not in beats]:
            del self._beats[gateway]  # it left; its requests' grace runs from its last beat
        grace = max(self.grace_seconds, self.resume_seconds)
        limit = self.beat_seconds + grace + FORGET_SECONDS
        old = [gateway for gateway, since in self._since.items() if now - since > limit]
        for gateway in old:
            if gateway not in beats:
                del self._since[gateway]
        return [gateway for gateway in beats if now - self._since[gateway] > FORGET_SECONDS]

    def abandoned(self, ledger: Ledger, now: float) -> list[Account]:
        """Open requests that have been alone for longer than they may be.

        A leader that has just begun knows nothing of the time before.
        """
        seen: dict[tuple[GatewayId, ...], bool] = {}  # most requests share their gateways
        alone_since: dict[RequestId, float] = {}
        abandoned = []
        for submission in ledger.submissions.values():
            for account in submission.accounts:
                request = account.request
                if request.gateways not in seen:
                    seen[request.gateways] = self._is_any_alive(request.gateways, now)
                if seen[request.gateways] or account.is_done:
                    continue
                since = self._alone_since.get(request.id, now)
                alone_since[request.id] = since
                if now - since >= self._grace(submission.submit, request.gateways):
                    abandoned.append(account)
        self._alone_since = alone_since
        return abandoned

    def _is_any_alive(self, gateways: Iterable[GatewayId], now: float) -> bool:
        last = [self._since.setdefault(gateway, now) for gateway in gateways]
        return any(now - since <= self.beat_seconds for since in last)

    def _grace(self, submit: Submit, gateways: tuple[GatewayId, ...]) -> float:
        if submit.resumable:
            return self.resume_seconds
        return self.grace_seconds if gateways else 0.0  # its client has left
