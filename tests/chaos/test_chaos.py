"""A short run of `python -m tests.chaos` in the default tests: everything is real but the model.

No times are asserted: a busy machine is no failure.
"""

from pathlib import Path

import pytest

from tests.chaos import report
from tests.chaos.run import Options, run

pytestmark = pytest.mark.alone

KILLED = {
    "kill gateway",
    "kill leader",
    "kill worker",
    "kill redis",
}  # that the seed draws, at least
SHORT = Options(seconds=22.0, kills=10, seed=34426, clients=4)


@pytest.mark.timeout(300)
async def test_whatever_dies_each_answer_is_right_and_ends_once(tmp_path: Path) -> None:
    told = report.figures(await run(SHORT, tmp_path))
    print(report.table(told))
    assert told["wrong"] == []
    assert set(told["faults"]) >= KILLED
    assert told["outcomes"]["whole"] > 0
    assert told["connections"] > told["requests"]  # some were cut off, and came back
