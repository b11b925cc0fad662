"""Whatever fails, and however often: each answer is told right, ends once, and leaves nothing.

More schedules than here: `python -m tests.simulate_faults`.
"""

import pytest

from common.messages import FinishReason
from tests import simulate_faults
from tests.simulate_faults import Report
from tests.system.fault_clients import KINDS
from tests.system.fault_world import World

NUM_SEEDS = 200
PROCESSES = "gsw"  # gateways, schedulers, workers

pytestmark = pytest.mark.timeout(480)  # half a minute of two cores that have nothing else to do


@pytest.fixture(scope="module")
def whole() -> Report:
    found = Report()
    for part in simulate_faults.simulate_all(1, NUM_SEEDS, jobs=2):
        found.add(part)
    return found


def test_no_schedule_breaks_a_promise(whole: Report) -> None:
    assert not whole.failed, "\n".join(map(str, whole.failed))


def test_whatever_may_happen_does(whole: Report) -> None:
    """Were a kind of fault or request never drawn, or without effect, nobody would notice."""
    faults = {f"world: {fault.__name__}" for fault in World(1).every_fault()}
    fates = ("dies", "is cut off", "lands late", "pauses, longer than a lease")
    expected = {f"{kind}: {fate}" for kind in PROCESSES for fate in fates}
    expected |= {f"r: {kind}" for kind in (*KINDS, "comes back")}
    expected |= {f"end: {reason}" for reason in FinishReason}
    expected |= {
        "g: hears a notice twice",
        "g: hears nothing",
        "g: leave_gateway",
        "g: misses a notice",
        "operator: cancel",
        "s: is told to end",
        "s: late write is fenced",
        "s: lease_leave",
        "s: write is fenced",
        "server: a notice is late",
        "server: crashes",
        "server: has lost something",
        "w: commit is CLOSED",
        "w: commit is DUPLICATE",
        "w: late commit is CLOSED",
        "w: late commit is DUPLICATE",
    }
    assert expected | faults <= whole.times.keys(), (expected | faults) - whole.times.keys()


@pytest.mark.parametrize("seed", [3, 11])
def test_a_seed_replays_exactly(seed: int) -> None:
    with simulate_faults.processes(2) as pool:
        verdicts = pool.map(simulate_faults.simulate, [seed, seed, seed], chunksize=1)
    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert len(verdicts[0].trace) > 100
