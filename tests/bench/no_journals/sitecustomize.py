"""For `tests.bench.promise` alone: a scheduler that writes no journals while a file stands there.

Python imports this module when it starts, since the benchmark puts this folder on its path.
"""

import sys
from pathlib import Path
from typing import Any

from tests.bench.switch import SWITCH, environ

if sys.orig_argv[-1:] and "scheduler" in sys.orig_argv and SWITCH in environ():
    from scheduler.ledger import Account, Ledger

    _catch_up = Ledger._catch_up
    _switch = Path(environ()[SWITCH])

    def _maybe(self: Ledger, account: Account) -> list[Any]:
        """All is counted as ever; only the entry is not written."""
        writes = _catch_up(self, account)
        return [] if _switch.exists() else writes

    Ledger._catch_up = _maybe  # type: ignore[method-assign]
