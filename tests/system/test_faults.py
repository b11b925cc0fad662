"""Whatever fails, and however often: each answer is told right, ends once, and leaves nothing.

More schedules than here: `python -m tests.simulate_faults`.
"""

import pytest

from tests import simulate_faults

NUM_SEEDS = 200
PART = 50


@pytest.mark.parametrize("first", range(1, NUM_SEEDS, PART))
def test_no_schedule_breaks_a_promise(first: int) -> None:
    failed = list(simulate_faults.simulate_all(first, PART, jobs=2))
    assert not failed, "\n".join(map(str, failed))


@pytest.mark.parametrize("seed", [3, 11])
def test_a_seed_replays_exactly(seed: int) -> None:
    with simulate_faults.processes(2) as pool:
        verdicts = pool.map(simulate_faults.simulate, [seed, seed, seed], chunksize=1)
    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert len(verdicts[0].trace) > 100
