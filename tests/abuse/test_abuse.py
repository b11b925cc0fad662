"""A short run of `python -m tests.abuse` in the default tests: everything is real but the model.

No times are asserted: a busy machine is no failure.
"""

from pathlib import Path

import pytest

from tests.abuse.attacks import ATTACKS
from tests.abuse.run import run


@pytest.mark.timeout(240)
async def test_a_gateway_under_attack_stays_well(tmp_path: Path) -> None:
    told: list[str] = []
    outcome = await run(tmp_path, 0.01, list(ATTACKS), told.append)
    print("\n".join(told))
    assert [text for text in outcome.wrong if "MiB" not in text] == []  # it takes a while to settle
    assert outcome.health.keys() == ATTACKS.keys()
    assert all(answered.milliseconds for answered in outcome.health.values())
