"""Figures of the lab: from records, curves and timelines to what the page says."""

import asyncio
import math
from pathlib import Path

import pytest

from cli.lab import (
    batch_size,
    fairness,
    orca,
    preemption,
    prefill,
    prefix_cache,
    simulator,
    streams,
    text,
)
from cli.lab.batch_size import Point, knee
from cli.lab.drawing import draw, steps
from cli.lab.errors import LabError
from cli.lab.page import HEAD, parse, render, update
from cli.lab.prefill import Seen
from cli.lab.records import (
    Record,
    gaps,
    lightest,
    mean,
    median,
    read_measured,
    tokens_per_second,
)

# --- Text and page ------------------------------------------------------------------------------


def test_tables_and_numbers() -> None:
    assert text.table(("a", "b"), [("x", 1)]) == "| a | b |\n| --- | ---: |\n| x | 1 |"
    assert [text.number(value) for value in (1234.5, 12.34, 1.234, 7.0)] == [
        "1,234",
        "12.3",
        "1.23",
        "7",
    ]
    assert text.share(0.3664) == "36.6 %"
    assert text.milliseconds(0.0123) == "12.3"
    assert text.milliseconds(None) == "-"
    assert (text.against(110, 100), text.against(90, 100)) == ("+10 %", "-10 %")


def test_bars_are_as_long_as_their_values() -> None:
    _, long, short, none, _ = text.bars([("a", 8.0), ("bb", 4.0), ("c", 0.0)], " x").splitlines()
    assert long == f" a {'█' * 40} 8 x"
    assert short == f"bb {'█' * 20}{' ' * 20} 4 x"
    assert none.split() == ["c", "0", "x"]


def test_parts_of_the_page_are_rewritten_alone(tmp_path: Path) -> None:
    page = tmp_path / "lab.md"
    update(page, {(2, "claim"): "two\n", (2, "real"): "r2\n", (2, "simulated"): "s2\n"})
    update(page, {(1, "claim"): "one\n", (2, "simulated"): "new\n"})
    written = page.read_text()
    assert written.startswith(HEAD)
    assert list(parse(written)) == [(1, "claim"), (2, "claim"), (2, "simulated"), (2, "real")]
    assert parse(written)[2, "simulated"] == "new\n"
    assert render(parse(written)) == written


# --- The simulator as a command -----------------------------------------------------------------


def test_what_the_simulator_refuses_is_told() -> None:
    with pytest.raises(LabError, match="policy"):
        simulator.simulate({"policy": "none"})


def test_variables_of_ours_change_no_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIRLIFT_STEP_MS", "70")
    found = simulator.simulate_one(requests=2, prompt_tokens=5, output_tokens=2)
    assert found["itl_seconds"]["p50"] == pytest.approx(0.01)


def test_cases_come_back_by_name() -> None:
    settings = {"requests": 3, "prompt_tokens": 5, "output_tokens": 2}
    found = simulator.simulate(settings, {"a": {"step_ms": 1}, "b": {"step_ms": 2}})
    assert [case["itl_seconds"]["p50"] for case in found.values()] == [
        pytest.approx(0.001),
        pytest.approx(0.002),
    ]
    assert len(found["a"]["each_request"]) == 3


# --- Drawings -----------------------------------------------------------------------------------


def entry(*chunks: tuple[str, int], came: tuple[tuple[str, int], ...] = ()) -> dict[str, object]:
    return {
        "chunks": [list(chunk) for chunk in chunks],
        "came": [[name, "t", num_prompt, 9, 0] for name, num_prompt in came],
        "ended": [],
    }


def test_a_timeline_is_drawn() -> None:
    timeline = [
        entry(came=(("a", 3), ("b", 1))),
        entry(("a", 2)),
        entry(("a", 1), came=(("c", 1),)),
        entry(("a", 1), ("b", 1)),
        entry(("b", 1)),
        entry(),
        entry(("a", 1), ("c", 1)),
    ]
    assert len(steps(timeline)) == 5
    assert draw(timeline) == "1 PPd-d\n2 ..Pd\n3 ....P"


# --- Records ------------------------------------------------------------------------------------


def record(tenant: str, arrival: float, first: float, last: float, out: int = 10) -> Record:
    return Record(tenant, arrival, first, last, 20, out)


def test_figures_of_records() -> None:
    found = [record("a", 0, 1, 5), record("b", 2, 4, 10, out=20)]
    assert [one.ttft for one in found] == [1, 2]
    assert [one.seconds_per_token for one in found] == [0.5, 0.4]
    assert tokens_per_second(found) == pytest.approx(70 / 10)
    assert lightest(found, 1) == {"a"}
    assert (mean([1, 2, 6]), median([5, 1, 9, 2])) == (3, 2)
    assert math.isnan(mean([]))


def test_service_grows_evenly_from_the_first_token_to_the_last() -> None:
    """a: 40 from 1 to 5; b: 40 from 4 to 8."""
    found = [record("a", 0, 1, 5), record("b", 0, 4, 8)]
    assert gaps(found, 8, 1) == pytest.approx([0, 10, 20, 30, 30, 20, 10, 0])


def test_measured_latencies_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    head = "arrival_s,tenant,prompt_tokens,output_tokens,measured_ttft_s,measured_latency_s\n"
    path.write_text(f"{head}1.5,x,7,9,0.5,2.0\n")
    assert read_measured(path) == [Record("x", 1.5, 2.0, 3.5, 7, 9)]
    path.write_text("arrival_s\n1\n")
    with pytest.raises(LabError, match=r"m\.csv"):
        read_measured(path)


# --- Clients ------------------------------------------------------------------------------------


def test_what_a_task_cannot_do_is_told_in_a_line() -> None:
    async def two(error: Exception) -> None:
        async def fail() -> None:
            raise error

        async with asyncio.TaskGroup(), asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())

    with pytest.raises(LabError, match="HTTP 503"):
        streams.run(two(LabError("HTTP 503")))
    with pytest.raises(ExceptionGroup):
        streams.run(two(ValueError()))


# --- Single experiments -------------------------------------------------------------------------


def test_the_knee_is_where_twice_the_seats_bring_too_little() -> None:
    rates = (10.0, 19.0, 30.0, 40.0)
    points = [Point(2**i, rate, 0.1) for i, rate in enumerate(rates)]
    assert knee(points) == 4
    assert knee(points[:2]) is None
    assert "The knee is at a batch of 4." in batch_size._report(points)


def test_rates_at_equal_latency_lie_between_two_loads() -> None:
    curve = [orca.Load(1.0, 0.01), orca.Load(4.0, 0.04), orca.Load(8.0, 1.0)]
    assert orca.rate_at(curve, 0.02) == pytest.approx(2.0)
    assert math.isnan(orca.rate_at(curve, 2.0))


def test_the_target_is_judged_beside_the_best_budgets() -> None:
    fast = Seen("fast", [0.2], 1.0, 100.0, is_fixed=True)
    calm = Seen("calm", [0.1], 1.0, 70.0, is_fixed=True)
    kept = prefill.judge(Seen("target", [0.05, 0.1], 1.0, 69.0), [fast, calm])
    assert "is 100 ms, below 110" in kept
    assert "0.69 of the best fixed budget's of all (fast): not within 10 %" in kept
    assert "0.99 of the best fixed budget's of those that stay below it (calm): within" in kept
    missed = prefill.judge(Seen("target", [0.05, 0.12], 1.0, 95.0), [fast])
    assert "is 120 ms, not below 110" in missed
    assert "0.95 of the best fixed budget's of all (fast): within 10 %" in missed
    assert "No fixed budget stays below it" in missed


def test_the_real_table_has_all_settings() -> None:
    seen = [Seen(name, [0.1, 0.3], 2.0, 50.0, is_fixed=True) for name in ("a", "b")]
    assert "| a | 100 | 300 | 300 | 2,000 | 50 |" in prefill._report(seen)


def test_how_far_a_prediction_is_off() -> None:
    near = fairness.Compared("near", 100.0, [60.0, 114.0, 190.0])
    far = fairness.Compared("far", 100.0, [120.0])
    assert near.row == ("near", "100", "114 (60 to 190)", "+14 %")
    told = fairness._report(0.7, [near, far])
    assert "1 of 2 figures are within 15 %; farther off: far." in told


def test_repeated_blocks_are_counted_up_to_the_first_new_one() -> None:
    rows = [{"hash_ids": [0, 1, 2]}, {"hash_ids": [0, 1, 3]}, {"hash_ids": [4, 1, 2]}]
    assert prefix_cache.count(rows) == (2, 5, 9)


def test_who_is_faster_wins() -> None:
    assert preemption.winner(1.0, 1.004) == "equal"
    assert preemption.winner(1.0, 2.0) == "recompute"
    assert preemption.Row(64, 0.5, 2.0, [1.0, 3.0], 1).winners == ["swap", "recompute"]
