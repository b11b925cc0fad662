"""A short run of `python -m tests.abuse` in the default tests: everything is real but the model.

No times are asserted: a busy machine is no failure.
"""

import re
from pathlib import Path

import pytest

from tests.abuse.attacks import ATTACKS
from tests.abuse.run import run

COUNT = re.compile(r"\w+: (\d+) (?:descriptors|threads) in the place of (\d+)")
POOLS = 8  # connections and threads that pools may open yet; what an attack leaks is more


def is_wrong(text: str) -> bool:
    """Memory takes a while to settle, and pools have not been asked for all they have."""
    found = COUNT.fullmatch(text)
    return int(found[1]) - int(found[2]) > POOLS if found else "MiB" not in text


@pytest.mark.timeout(240)
async def test_a_gateway_under_attack_stays_well(tmp_path: Path) -> None:
    told: list[str] = []
    outcome = await run(tmp_path, 0.01, list(ATTACKS), told.append)
    print("\n".join(told))
    assert list(filter(is_wrong, outcome.wrong)) == []
    assert outcome.health.keys() == ATTACKS.keys()
    assert all(answered.milliseconds for answered in outcome.health.values())


def test_more_than_pools_may_open_is_wrong() -> None:
    assert not is_wrong("valkey: 34 descriptors in the place of 33")
    assert is_wrong("gateway: 60 descriptors in the place of 33")
    assert is_wrong("2 keys without a time to live in the place of 1")
