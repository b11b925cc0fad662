"""Which gateways live, and which requests nobody will come back for; pure."""

from collections.abc import Iterable, Mapping

from common.messages import GatewayId
from scheduler.ledger import Account, Ledger

FORGET_SECONDS = 60.0  # a dead gateway is forgotten, and its field goes, after so long


class Viewers:
    def __init__(self, beat_seconds: float, grace_seconds: float) -> None:
        self.beat_seconds = beat_seconds  # a beat that stands still so long: the gateway is dead
        self.grace_seconds = grace_seconds  # how long its clients have to turn up elsewhere
        self._beats: dict[GatewayId, int] = {}
        self._since: dict[GatewayId, float] = {}  # when the beat last moved

    def watch(self, beats: Mapping[GatewayId, int], now: float) -> list[GatewayId]:
        """Take in what `gateways` says. Returns those whose field may be dropped."""
        for gateway, beat in beats.items():
            if self._beats.get(gateway) != beat:
                self._beats[gateway], self._since[gateway] = beat, now
        for gateway in [gateway for gateway in self._beats if gateway not in beats]:
            del self._beats[gateway]  # it left; its requests' grace runs from its last beat
        limit = self.beat_seconds + self.grace_seconds + FORGET_SECONDS
        old = [gateway for gateway, since in self._since.items() if now - since > limit]
        for gateway in old:
            if gateway not in beats:
                del self._since[gateway]
        return [gateway for gateway in beats if now - self._since[gateway] > FORGET_SECONDS]

    def abandoned(self, ledger: Ledger, now: float) -> list[Account]:
        """Open requests all of whose gateways are gone for good, and that asked for no more."""
        gone: dict[tuple[GatewayId, ...], bool] = {}  # most requests share theirs
        abandoned = []
        for submission in ledger.submissions.values():
            if submission.submit.resumable:
                continue
            for account in submission.accounts:
                gateways = account.request.gateways
                if gateways not in gone:
                    gone[gateways] = self._are_gone(gateways, now)
                if gone[gateways] and not account.is_done:
                    abandoned.append(account)
        return abandoned

    def _are_gone(self, gateways: Iterable[GatewayId], now: float) -> bool:
        limit = self.beat_seconds + self.grace_seconds
        return all(now - self._since.setdefault(gateway, now) > limit for gateway in gateways)
