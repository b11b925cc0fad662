"""Control entries that have come and are not done yet, in order; pure.

What an entry means was accepted before it: unknown when all of that is open, it has ended, or
never was. Of a tenant it may mean what is not read yet, so that all that follow wait for it. And a
worker may be only just joining.
"""

from collections.abc import Iterable

from common.bus import EntryId, Write
from common.messages import Control
from scheduler.controls import Controls
from scheduler.ledger import Ledger
from scheduler.pool_controls import PoolControls
from scheduler.targets import tenant_of


class Asked:
    def __init__(self, ledger: Ledger, controls: Controls, pool_controls: PoolControls) -> None:
        self._ledger = ledger
        self._controls = controls
        self._pool_controls = pool_controls
        self._entries: list[tuple[EntryId, Control]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entries: Iterable[tuple[EntryId, Control]]) -> None:
        self._entries += entries

    def do(self, *, is_behind: bool, is_watched: bool = False) -> list[Write]:
        """Do what can be done now.

        `is_behind`: submissions were accepted that are not read yet. `is_watched`: a worker that
        is unknown now does not exist.
        """
        entries, self._entries = self._entries, []
        writes: list[Write] = []
        follows_tenant = False
        for entry, control in entries:
            is_of_tenant = tenant_of(control.target) is not None
            is_early = is_behind and (
                is_of_tenant or follows_tenant or not self._ledger.targets(control.target, entry)
            )
            if is_early or not (is_watched or self._pool_controls.knows(control)):
                follows_tenant |= is_of_tenant
                self._entries.append((entry, control))
            else:
                writes += self._controls.take(entry, control)
        return writes
