"""Lengths are what their text says, by their moments and their bounds."""

import statistics
from random import Random

import pytest

from common.lengths import lengths


def drawn(text: str, count: int = 10_001) -> list[int]:
    draw, random = lengths(text), Random(0)
    return [draw(random) for _ in range(count)]


def test_fixed_and_uniform() -> None:
    assert set(drawn("128", 10)) == {128}
    assert set(drawn("uniform:2:4", 100)) == {2, 3, 4}


def test_lognormal_by_median_and_sigma() -> None:
    assert statistics.median(drawn("lognormal:100:0.5")) == pytest.approx(100, rel=0.03)


def test_lognormal_by_mean_and_spread() -> None:
    found = drawn("lognormal:mean=500:sd=300")
    assert statistics.mean(found) == pytest.approx(500, rel=0.03)
    assert statistics.stdev(found) == pytest.approx(300, rel=0.06)
    assert set(drawn("lognormal:mean=7:sd=0", 20)) == {7}


def test_no_length_is_below_one() -> None:
    assert min(drawn("lognormal:1:2", 100)) == 1


NONE = """
0 x -1 nan inf 1:2 uniform:0:4 uniform:5:4 uniform:1 normal:1:2 lognormal:0:1 lognormal:1:-1
lognormal:1:11 lognormal:mean=0:sd=1 lognormal:mean=5:sd=x lognormal:mean=5 lognormal:mean=5:sd=inf
"""


@pytest.mark.parametrize("text", ["", *NONE.split()])
def test_what_is_none_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="are none of N, uniform"):
        lengths(text)
