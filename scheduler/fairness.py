"""The counters of fairness, as they stand in Redis for the next leader; pure."""

from collections.abc import Collection, Mapping

from common.bus import DropShare, SetShare, Share, Write
from scheduler.core.shares import Shares


class Counters:
    """What of `shares` is written, and what of it has changed."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._written: dict[str, Share] = {}

    def restore(self, found: Mapping[str, Share]) -> None:
        """What the last leader wrote. Weights come from settings and from `control` alone."""
        self._written = dict(found)
        self._shares.served |= {tenant: share.served for tenant, share in found.items()}

    def writes(self, active: Collection[str]) -> list[Write]:
        """What has changed since the last time. `active`: tenants with open requests."""
        self._forget(active)
        shares = self._shares
        now = {
            tenant: Share(round(served, 3), shares.weights.get(tenant, 1.0))
            for tenant, served in shares.served.items()
        }
        gone = [tenant for tenant in self._written if tenant not in now]
        writes: list[Write] = [DropShare(tenant) for tenant in gone]
        for tenant, share in now.items():
            if self._written.get(tenant) != share:
                writes.append(SetShare(tenant, share))
        self._written = now
        return writes

    def _forget(self, active: Collection[str]) -> None:
        """One that is away and has had no more than who is here would be lifted to them anyway."""
        shares = self._shares
        if not active:
            return
        least = min(map(shares.of, active))
        shares.forget(
            [
                tenant
                for tenant, served in shares.served.items()
                if tenant not in active and served <= least
            ]
        )
