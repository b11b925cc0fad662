"""Prompts are equal as far as their prefixes are; arrivals repeat, scale and stop."""

import itertools
import math
import statistics
from random import Random

import pytest

from scheduler.simulation.errors import InputError
from scheduler.simulation.workload import Arrival, prompt, select, strictly_later
from scheduler.simulation.workload_made import gaps, lengths, levels_of, make_workload, shares

THREE = [Arrival(float(at), 10, 5) for at in (1, 2, 4)]


def common(a: list[int], b: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b)))  # noqa: B905


def test_prompts_share_what_their_hashes_say() -> None:
    one = prompt(Arrival(0.0, 1100, 1, hashes=(0, 1, 2)), 1)
    other = prompt(Arrival(0.0, 1300, 1, hashes=(0, 1, 3)), 2)
    assert (len(one), len(other)) == (1100, 1300)
    assert common(one, other) == 1024


def test_prompts_share_the_prefix_of_their_tenant_and_no_more() -> None:
    one, other = (prompt(Arrival(0.0, 30, 1, prefix_tokens=12), serial) for serial in (1, 2))
    assert common(one, other) == 12
    assert common(prompt(Arrival(0.0, 5, 1), 1), prompt(Arrival(0.0, 5, 1), 2)) == 0
    assert len(prompt(Arrival(0.0, 3, 1, prefix_tokens=12), 1)) == 3


def test_a_short_file_is_repeated_later() -> None:
    found = list(select(THREE, 7, 1.0, 0.0))
    assert [arrival.at for arrival in found] == [1, 2, 4, 5.5, 6.5, 8.5, 10]


def test_repeated_requests_have_prompts_and_names_of_their_own() -> None:
    twice = list(select([Arrival(0.0, 600, 1, hashes=(0, 5), name="a")], 2, 1.0, 0.0))
    assert [arrival.hashes for arrival in twice] == [(0, 5), (6, 11)]
    assert [arrival.name for arrival in twice] == ["a", "a#1"]


def test_rate_and_duration() -> None:
    assert [arrival.at for arrival in select(THREE, 0, 2.0, 1.5)] == [0.5, 1.0]
    assert len(list(select(THREE, 2, 1.0, 0.0))) == 2


def test_no_two_arrive_at_once() -> None:
    assert strictly_later(2.0, 1.0) == 2.0
    assert strictly_later(1.0, 1.0) == math.nextafter(1.0, 2.0)


@pytest.mark.parametrize(("kind", "variation"), [("poisson", 1.0), ("bursty", 3.0), ("even", 0.0)])
def test_gaps_have_the_rate_and_the_variation(kind: str, variation: float) -> None:
    random, gap = Random(1), gaps(kind, rate=4.0, variation=3.0)
    drawn = [gap(random) for _ in range(50_000)]
    mean = statistics.fmean(drawn)
    assert mean == pytest.approx(0.25, rel=0.05)
    assert statistics.pstdev(drawn) / mean == pytest.approx(variation, rel=0.05)


def test_lengths() -> None:
    random = Random(1)
    assert {lengths("128")(random) for _ in range(10)} == {128}
    assert {lengths("uniform:2:4")(random) for _ in range(100)} == {2, 3, 4}
    drawn = [lengths("lognormal:100:0.5")(random) for _ in range(10_001)]
    assert statistics.median(drawn) == pytest.approx(100, rel=0.05)
    assert statistics.fmean(drawn) == pytest.approx(100 * math.exp(0.125), rel=0.05)


@pytest.mark.parametrize("text", ["", "0", "x", "uniform:4:2", "lognormal:8", "normal:1:2", "nan"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="are none of"):
        lengths(text)


def test_shares() -> None:
    assert levels_of("0=9,-5=1") == {0: 9.0, -5: 1.0}
    assert shares("alice=3, bob=0.5,carol") == {"alice": 3.0, "bob": 0.5, "carol": 1.0}
    for text in ("alice=x", "alice=0", "alice=inf"):
        with pytest.raises(InputError):
            shares(text)


def made(**changes: object) -> list[Arrival]:
    options = {
        "gap": gaps("poisson", 1.0, 1.0),
        "prompt_tokens": lengths("uniform:1:100"),
        "output_tokens": lengths("uniform:1:100"),
        "tenants": {"alice": 3.0, "bob": 1.0},
        "priorities": levels_of("0=1,5=1"),
        "prefix_tokens": 4,
        "seed": 0,
    }
    return make_workload(2000, **(options | changes))  # type: ignore[arg-type]


def test_a_seed_gives_one_workload() -> None:
    assert made() == made()
    assert made() != made(seed=1)


def test_what_is_drawn_does_not_disturb_the_rest() -> None:
    one, other = made(), made(prompt_tokens=lengths("7"))
    assert [a.at for a in one] == [a.at for a in other]
    assert [a.tenant for a in one] == [a.tenant for a in other]


def test_tenants_and_priorities_have_their_shares() -> None:
    arrivals = made()
    assert sum(a.tenant == "alice" for a in arrivals) == pytest.approx(1500, rel=0.05)
    assert {a.priority for a in arrivals} == {0, 5}
    assert {a.tenant for a in made(tenants={})} == {"anonymous"}
