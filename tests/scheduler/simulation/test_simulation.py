"""The clock around the real scheduler: times by hand, and tokens that add up."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from common.config import SchedulerSettings
from common.messages import WorkerHello, WorkerId
from scheduler.core.shares import Shares
from scheduler.simulation.cases import arrivals, run_case
from scheduler.simulation.cores import build_fleet, tenant_weights
from scheduler.simulation.cost import Constant
from scheduler.simulation.drawing import Recorder
from scheduler.simulation.errors import InputError
from scheduler.simulation.fairness import Fairness
from scheduler.simulation.figures import Figures, figures
from scheduler.simulation.measures import Goals, Measures
from scheduler.simulation.options import make_options
from scheduler.simulation.simulation import Simulation
from scheduler.simulation.workload import Arrival

PLAIN, NO_GOALS = SchedulerSettings(), Goals()
HELLO = WorkerHello(
    WorkerId(""),
    "m",
    "simulated",
    num_blocks=32,
    block_size=4,
    max_request_tokens=128,
    max_step_tokens=16,
    max_rows=8,
)


def simulate(
    *coming: Arrival,
    settings: SchedulerSettings = PLAIN,
    hello: WorkerHello = HELLO,
    goals: Goals = NO_GOALS,
    stop_at: float = float("inf"),
    max_tokens: int = 0,
    num_workers: int = 1,
) -> Simulation:
    """Every step takes one second; all invariants are checked after every event."""
    fleet = build_fleet(settings, Shares(), hello, num_workers)
    measures = Measures(goals, Fairness(1.0, 2.0, {}))
    recorders = {name: Recorder(1, 0) for name in fleet.workers}
    simulation = Simulation(
        fleet, Constant(1.0), measures, recorders, max_tokens=max_tokens, is_checked=True
    )
    simulation.run(iter(coming), stop_at)
    return simulation


def run(**given: str) -> Figures:
    return run_case(make_options(given, {}), checks=True).figures


def total(case: Figures) -> Mapping[str, int]:
    kinds = ("requests", "ended", "unfinished", "prompt_tokens", "output_tokens")
    return {kind: case[kind] for kind in kinds}


def test_times_of_one_request() -> None:
    """Its prompt takes the first second, each token one more."""
    simulation = simulate(Arrival(2.0, 4, 3))
    case = figures(simulation)
    assert case["seconds"] == 3.0
    assert case["ttft_seconds"]["max"] == 1.0
    assert case["tpot_seconds"]["max"] == 1.0
    assert case["itl_seconds"] == {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0, "max": 1.0}
    assert case["e2e_seconds"]["max"] == 3.0
    assert (case["steps"], case["busy_share"]) == (3, 1.0)
    assert [worker.num_assigned for worker in simulation.fleet.workers.values()] == [0]


def test_who_comes_during_a_step_waits_for_the_one_that_is_planned() -> None:
    """Steps [0, 1) and [1, 2) are planned when the second comes at 0.5: it has the third."""
    simulation = simulate(Arrival(0.0, 4, 3), Arrival(0.5, 4, 2))
    case = figures(simulation)
    assert list(simulation.measures.latencies.ttft) == [1.0, 2.5]
    assert list(simulation.measures.latencies.e2e) == [3.0, 3.5]
    assert case["rows_per_step"] == 5 / 4
    assert case["output_tokens_per_second"] == 5 / 4


def test_a_prompt_in_chunks_has_its_first_token_after_the_last() -> None:
    simulation = simulate(Arrival(0.0, 40, 2))  # 16 tokens a step
    assert list(simulation.measures.latencies.ttft) == [3.0]
    assert figures(simulation)["tokens_per_step"] == 41 / 4


def test_goals() -> None:
    """The first token of the second request comes after 2.5 s, of the first after 1."""
    coming = Arrival(0.0, 4, 3), Arrival(0.5, 4, 2)
    assert simulate(*coming, goals=Goals(ttft=2.0)).measures.num_good == 1
    assert simulate(*coming, goals=Goals(ttft=3.0)).measures.num_good == 2
    assert simulate(*coming, goals=Goals(tpot=0.5)).measures.num_good == 0


def test_a_gap_that_is_not_one_step() -> None:
    """Two grow from 1 to 5 blocks, where there are 6: one of them is computed anew."""
    hello = WorkerHello(WorkerId(""), "m", "s", 6, 4, 20, 16, 8)
    simulation = simulate(Arrival(0.0, 3, 16), Arrival(0.1, 3, 16), hello=hello)
    case = figures(simulation)
    assert case["ended"] == 2
    assert case["output_tokens"] == 32
    assert case["itl_seconds"]["max"] > 1.0
    assert sum(case["preemptions"].values()) >= 1


def test_the_clock_stops_when_it_is_told_to() -> None:
    case = figures(simulate(Arrival(0.0, 4, 3), Arrival(1.0, 4, 30), stop_at=2.5))
    assert case["seconds"] == 2.5
    assert (case["ended"], case["unfinished"], case["output_tokens"]) == (0, 2, 2)


def test_what_can_never_run_is_refused() -> None:
    case = figures(simulate(Arrival(0.0, 120, 9), Arrival(0.0, 4, 3)))
    assert case["refused"] == {
        "129 tokens of prompt and answer are more than the 128 of a request": 1
    }
    assert (case["requests"], case["ended"], case["unfinished"]) == (2, 1, 0)


def test_an_answer_can_end_before_the_scheduler_expects_it() -> None:
    """The third step is planned before the second has drawn the last token: it computes nothing."""
    simulation = simulate(Arrival(0.0, 4, 2), max_tokens=100)
    case = figures(simulation)
    assert (case["ended"], case["output_tokens"], case["seconds"]) == (1, 2, 2.0)
    assert case["steps"] == 2


def test_a_recorded_max_tokens_is_what_the_scheduler_believes() -> None:
    """Reserved exactly, 4 + 101 - 1 slots are 26 blocks, and two of those are more than 32."""
    settings = SchedulerSettings(kv="reserved", prefix_cache="off")
    believed = [Arrival(0.0, 4, 2, max_tokens=101), Arrival(0.0, 4, 2, max_tokens=101)]
    known = [Arrival(0.0, 4, 2), Arrival(0.0, 4, 2)]
    assert figures(simulate(*known, settings=settings))["ttft_seconds"]["max"] == 1.0
    assert figures(simulate(*believed, settings=settings))["ttft_seconds"]["max"] > 2.0
    claimed = simulate(*known, settings=settings, max_tokens=101)
    assert figures(claimed)["ttft_seconds"]["max"] > 2.0


def test_waste_of_reserved_memory() -> None:
    """128 slots for a prompt of 4 and an answer of 3: 6 will be used, after each step 4, 5, 6."""
    settings = SchedulerSettings(kv="reserved", reservation="maximum", prefix_cache="off")
    cache = figures(simulate(Arrival(0.0, 4, 3), settings=settings))["cache"]
    assert cache["taken_share"] == 1.0
    assert cache["useless_share"] == pytest.approx((128 - 6) / 128)
    assert cache["reserved_share"] == pytest.approx((2 + 1 + 0) / 3 / 128)
    assert cache["waste_share"] == pytest.approx(cache["useless_share"] + cache["reserved_share"])


def test_waste_of_paged_memory_is_the_last_block() -> None:
    """Blocks of 4: after the steps 4 of 4 slots hold tokens, 5 of 8, 6 of 8; 6 is the end."""
    cache = figures(simulate(Arrival(0.0, 4, 3)))["cache"]
    assert cache["waste_share"] == pytest.approx((0 + 3 + 2) / (4 + 8 + 8))
    assert cache["useless_share"] == pytest.approx((0 + 2 + 2) / (4 + 8 + 8))
    assert cache["most_taken_share"] == 2 / 32


def test_prefixes_are_found_and_shared_blocks_are_taken_once() -> None:
    """The second prompt begins with the 8 tokens of two whole blocks; they are taken once."""
    coming = [Arrival(at, 10, 6, prefix_tokens=8) for at in (0.0, 2.5)]
    simulation = simulate(*coming)
    case = figures(simulation)
    assert case["prefix_hits"] == {"token_share": 8 / 20, "block_share": 2 / 6}
    assert case["cache"]["most_taken_share"] == (4 + 3 - 2) / 32
    [worker] = simulation.workers.values()
    assert (worker.use.num_taken, worker.use.num_empty, worker.use.num_useless) == (0, 0, 0)


CASES = {
    "plain": {},
    "short of blocks": {"num_blocks": "40"},
    "swap": {"num_blocks": "40", "preemption": "swap"},
    "few host blocks": {"num_blocks": "40", "preemption": "swap", "num_host_blocks": "12"},
    "never": {"num_blocks": "40", "preemption": "never"},
    "static": {"batching": "static"},
    "whole": {"prefill": "whole", "max_step_tokens": "512"},
    "exclusive": {"prefill": "exclusive", "max_step_tokens": "512"},
    "reserved": {"kv": "reserved", "prefix_cache": "off", "reservation": "power_of_two"},
    "fair": {"policy": "fair", "tenants": "a=3,b=1", "num_blocks": "40"},
    "urgent": {"policy": "priority", "priorities": "0=1,5=1", "num_blocks": "40"},
    "lengths unknown": {"max_tokens": "150", "num_blocks": "60"},
    "lengths unknown, swap": {"max_tokens": "150", "num_blocks": "40", "preemption": "swap"},
    "three workers": {"workers": "3", "prefix_tokens": "32"},
    "far ahead": {"depth": "3", "max_tokens": "150", "num_blocks": "40"},
}


@pytest.mark.parametrize("case", CASES)
def test_everything_ends_with_all_its_tokens(case: str) -> None:
    given = {
        "requests": "30",
        "rate": "40",
        "prompt_tokens": "uniform:1:100",
        "output_tokens": "uniform:1:60",
        "num_blocks": "200",
        "max_step_tokens": "64",
        "max_model_len": "400",
        **CASES[case],
    }
    expected = list(arrivals(make_options(given, {}).simulation))
    found = run(**given)
    assert total(found) == {
        "requests": 30,
        "ended": 30,
        "unfinished": 0,
        "prompt_tokens": sum(arrival.prompt_tokens for arrival in expected),
        "output_tokens": sum(arrival.output_tokens for arrival in expected),
    }
    tenants = found["tenants"].values()
    assert sum(tenant["output_tokens"] for tenant in tenants) == found["output_tokens"]
    assert found == run_case(make_options(given, {})).figures, "one seed, two results"


# Blocks for 160 tokens, where each answer has twice as many as its prompt.
SHORT = {"requests": "12", "rate": "100", "num_blocks": "10"}
SHORT |= {"prompt_tokens": "uniform:20:40", "output_tokens": "uniform:40:80"}


def test_shortage_preempts_as_it_is_told() -> None:
    given = SHORT
    assert set(run(**given)["preemptions"]) == {"recompute"}
    assert "swap" in run(**given, preemption="swap")["preemptions"]
    assert not run(**given, preemption="never")["preemptions"]


def test_settings_reach_what_they_set() -> None:
    assert set(run(**SHORT, preemption="swap", num_host_blocks="1")["preemptions"]) == {"recompute"}
    assert sum(run(**SHORT, max_model_len="80")["refused"].values()) > 0
    assert run(**SHORT, stop_seconds="0.5")["unfinished"] > 0
    assert run(**SHORT, duration="0.05")["requests"] < 12
    one = {"requests": "1", "prompt_tokens": "64", "output_tokens": "1", "num_blocks": "8"}
    assert run(**one, max_step_tokens="16")["steps"] == 4
    assert run(**one)["steps"] == 1


def test_swapped_blocks_take_time() -> None:
    given = SHORT | {"preemption": "swap", "cost": "linear"}
    fast = run(**given, coefficients="step=0.01")
    slow = run(**given, coefficients="step=0.01,swapped=0.001")
    assert slow["seconds"] > fast["seconds"]


def test_more_workers_are_faster() -> None:
    given = {"requests": "100", "rate": "100", "max_rows": "4", "prompt_tokens": "16"}
    given |= {"output_tokens": "16", "num_blocks": "64"}
    assert run(**given, workers="4")["seconds"] < 0.4 * run(**given)["seconds"]


def test_a_worker_without_a_line_takes_from_one_that_has_one() -> None:
    """The third goes where less is to be computed; but the long answer there keeps the seat."""
    long, short, late = Arrival(0.0, 4, 100), Arrival(0.0, 12, 2), Arrival(0.0, 4, 2)
    one_seat = replace(HELLO, max_rows=1)
    simulation = simulate(long, short, late, hello=one_seat, num_workers=2)
    case = figures(simulation)
    assert case["seconds"] == 100.0
    assert case["ttft_seconds"]["max"] < 10.0
    assert [worker.num_assigned for worker in simulation.fleet.workers.values()] == [0, 0]


def test_choices_that_contradict() -> None:
    with pytest.raises(InputError, match="kv=reserved"):
        run(kv="reserved", prefix_cache="on")
    with pytest.raises(InputError, match="tenant-weights"):
        tenant_weights(SchedulerSettings(tenant_weights="alice"))
