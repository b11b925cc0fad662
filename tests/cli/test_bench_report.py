"""Figures of samples that are known."""

import pytest

from cli.bench.options import Options
from cli.bench.report import Report, Sample, Targets, percentile


def test_percentiles_are_values_that_occurred() -> None:
    ranked = [float(value) for value in range(1, 11)]
    assert [percentile(ranked, percent) for percent in (50, 90, 95, 99)] == [5.0, 9.0, 10.0, 10.0]
    assert percentile([3.0], 50) == 3.0


def test_report_of_known_samples() -> None:
    fast = Sample(0.0, 1.0, 10, 5, (0.2, 0.4, 0.5))
    slow = Sample(1.0, 4.0, 10, 11, (1.0, 2.5, 3.0))
    report = Report((fast, slow, Sample(0.0, 0.1, error="HTTP 500")))
    assert report.seconds == 4.0
    assert report.rate(report.output_tokens) == 4.0
    assert report.longest_gap == pytest.approx(1.5)
    figures = report.to_json()
    assert figures["tpot_seconds"]["max"] == pytest.approx(0.2)  # 0.8 / 4 and 2 / 10
    assert figures["ttft_seconds"]["mean"] == pytest.approx(0.6)
    assert figures["requests_per_second"] == 0.5
    assert figures["samples"][1]["frames"] == (1.0, 2.5, 3.0)


FAST = Sample(0.0, 1.0, 10, 5, (0.2, 0.4, 0.5))  # TPOT 0.2, longest gap 0.2
SLOW = Sample(1.0, 4.0, 10, 11, (1.0, 2.5, 3.0))  # TPOT 0.2, longest gap 1.5


@pytest.mark.parametrize(
    ("targets", "good"),
    [
        (Targets(), 2),
        (Targets(ttft=1.0), 2),  # to meet is to be no longer
        (Targets(ttft=0.99), 1),
        (Targets(tpot=0.2), 2),
        (Targets(tpot=0.19), 0),
        (Targets(itl=1.49), 1),
        (Targets(itl=0.2, e2e=2.9), 1),
        (Targets(e2e=0.9), 0),
        (Targets(ttft=0.5, e2e=3.0), 1),
    ],
)
def test_good_requests_meet_every_target(targets: Targets, good: int) -> None:
    failed = Sample(0.0, 0.1, error="HTTP 500")
    report = Report((FAST, SLOW, failed), targets=targets)
    assert report.num_good == good
    assert report.good_share == pytest.approx(good / 3)  # of all that asked
    assert report.to_json()["good_requests_per_second"] == pytest.approx(good / 4)
    assert ("requests/s" in str(report).split("longest gap")[1]) == targets.are_given


def test_an_answer_of_one_token_meets_any_time_per_token() -> None:
    assert Targets(tpot=0.001, itl=0.001).met_by(Sample(0.0, 1.0, 1, 1, (0.9,)))


def test_targets_are_told_in_milliseconds() -> None:
    options = Options(ttft_ms=200, tpot_ms=30, itl_ms=40, e2e_ms=5000)
    assert Targets.of(options) == Targets(0.2, 0.03, 0.04, 5.0)
    assert not Targets.of(Options()).are_given


def test_failures_are_named() -> None:
    failed = [Sample(0, 1, error="timeout", number=n, turn=n % 2) for n in range(3)]
    report = Report((FAST, *failed, Sample(0, 1, error="HTTP 500", number=7)))
    assert report.failures() == [
        "failed: 3 x timeout (request 0, 1.1, 2)",
        "failed: 1 x HTTP 500 (request 7)",
    ]
    assert "note: all figures are of the 1 requests that did not fail" in str(report)


def test_of_many_failures_the_first_are_named() -> None:
    report = Report(tuple(Sample(0, 1, error="timeout", number=n) for n in range(20)))
    assert report.failures() == ["failed: 20 x timeout (request 0, 1, 2, 3, 4, 5, 6, 7, …)"]


@pytest.mark.parametrize(
    ("sample", "busy", "note"),
    [
        (Sample(0, 1, 1, 5, (0.1,), asked_tokens=6), 0.1, "1 answers have another length"),
        (Sample(0, 1, 1, 5, (0.1,), has_usage=False), 0.1, "no usage in some answers"),
        (Sample(0, 1, 1, 5, (0.1,), late=0.02), 0.1, "arrivals were up to 20 ms late"),
        (FAST, 0.8, "this client took 0.80 of a core"),
    ],
)
def test_what_makes_figures_doubtful_is_noted(sample: Sample, busy: float, note: str) -> None:
    [told] = Report((sample,), busy=busy).notes()
    assert told.startswith(f"note: {note}")
    assert told in str(Report((sample,), busy=busy))


def test_a_sound_run_has_no_notes() -> None:
    sample = Sample(0, 1, 1, 5, (0.1,), asked_tokens=5, late=0.001)
    assert Report((sample,), busy=0.5).notes() == []
