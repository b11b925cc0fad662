"""Medians, ranges and ratios of runs that are known."""

import pytest

from cli.bench.figures import Run, Spread, figures, lines
from cli.bench.options import Options, Plan, Sweep
from cli.bench.report import Report, Sample, Targets
from cli.bench.tables import aligned, cell, describe, number


def report(tokens: int, *, seconds: float = 2.0, error: str = "") -> Report:
    """Of one request."""
    return Report((Sample(0.0, seconds, 10, tokens, (0.5, seconds), error),))


SERVERS = (("a", "http://x"), ("b", "http://y"))


def test_figures_of_a_run() -> None:
    found = figures(Report(report(20).samples, targets=Targets(ttft=0.4)))
    assert found["output tokens/s"] == 10
    assert found["prompt tokens/s"] == 5
    assert found["requests/s"] == 0.5
    assert found["TTFT p50, ms"] == found["TTFT p99, ms"] == 500
    assert found["ITL p50, ms"] == found["longest gap, ms"] == 1500
    assert found["E2E p99, ms"] == 2000
    assert found["good, %"] == 0
    assert "good, %" not in figures(report(20))


def test_a_run_without_an_answer_has_no_figures() -> None:
    assert figures(report(20, error="timeout")) == {}


def test_medians_and_ranges_over_repeats() -> None:
    plan = Plan(Options(), SERVERS[:1], repeats=3)
    runs = [Run("a", None, n, report(tokens)) for n, tokens in enumerate((20, 60, 30))]
    [line] = lines(plan, runs)
    assert line.figures["output tokens/s"] == Spread(15, 10, 30)
    assert line.ratios == {}


def test_ratios_are_of_medians_to_the_first_server_at_the_same_value() -> None:
    plan = Plan(Options(), SERVERS, Sweep("rate", (1.0, 2.0)))
    tokens = {("a", 1.0): 20, ("b", 1.0): 50, ("a", 2.0): 40, ("b", 2.0): 20}
    runs = [Run(name, value, 0, report(count)) for (name, value), count in tokens.items()]
    found = lines(plan, runs)
    assert [(line.server, line.value) for line in found] == list(tokens)
    assert [line.ratios.get("output tokens/s") for line in found] == [None, 2.5, None, 0.5]


def test_a_first_server_that_failed_leaves_no_ratios() -> None:
    runs = [Run("a", None, 0, report(20, error="timeout")), Run("b", None, 0, report(20))]
    first, second = lines(Plan(Options(), SERVERS), runs)
    assert (first.num_failed, second.num_failed) == (1, 0)
    assert second.ratios == {}
    assert second.figures["output tokens/s"].median == 10


@pytest.mark.parametrize(("error", "ratio"), [("", 1.5), ("timeout", None)])
def test_a_third_server_is_compared_with_the_first_alone(error: str, ratio: float | None) -> None:
    plan = Plan(Options(), (*SERVERS, ("c", "http://z")))
    runs = [
        Run("a", None, 0, report(20, error=error)),
        Run("b", None, 0, report(40)),
        Run("c", None, 0, report(30)),
    ]
    assert lines(plan, runs)[2].ratios.get("output tokens/s") == ratio


def test_the_order_of_runs_alternates() -> None:
    cases = list(Plan(Options(seed=5), SERVERS, Sweep("rate", (1.0, 2.0)), repeats=2).cases())
    assert [(c.value, c.repeat, c.server) for c in cases] == [
        (value, repeat, server)
        for value in (1.0, 2.0)
        for repeat, order in ((0, "ab"), (1, "ba"))
        for server in order
    ]
    assert [c.options.seed for c in cases] == [5, 5, 6, 6, 7, 7, 8, 8]
    assert [c.options.rate for c in cases] == [1.0] * 4 + [2.0] * 4
    assert {(c.server, c.options.url) for c in cases} == set(SERVERS)


def test_failures_are_marked_in_the_line_of_a_sweep() -> None:
    plan = Plan(Options(), SERVERS, Sweep("rate", (1.0,)))
    runs = [Run("a", 1.0, 0, report(20)), Run("b", 1.0, 0, report(20, error="timeout"))]
    text = describe(plan, runs)
    first, second = text.splitlines()[1:3]
    assert first.endswith(" 0")
    assert second.split() == ["1", "b", *"-" * 5, "1!"]
    assert "b, rate 1: failed: 1 x timeout (request 0)" in text


def test_numbers_have_three_figures_or_more() -> None:
    told = [number(value) for value in (0, 0.12345, 1.23456, 12.3456, 123.456, 1234.56)]
    assert told == ["0", "0.123", "1.23", "12.3", "123", "1235"]
    assert cell(Spread(2, 1, 3)) == "2.00 (1.00 to 3.00)"
    assert cell(Spread(2, 2, 2)) == "2.00"


def test_columns_are_aligned() -> None:
    assert aligned([["a", "bb"], ["ccc", "d"]], text_columns=(0,)) == "a    bb\nccc   d"
