"""The picture: axes whose ticks are round and hold all values, and a line for each server."""

import xml.etree.ElementTree as ET

import pytest

from cli.bench.figures import Line, Spread
from cli.bench.options import Options, Plan, Sweep
from cli.bench.plot import axis, nice_step, plot, tick_text

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("least", "step"), [(0.9, 1), (1.0, 1), (1.1, 2), (2.2, 2.5), (3, 5), (6, 10), (0.03, 0.05)]
)
def test_steps_are_round(least: float, step: float) -> None:
    assert nice_step(least) == pytest.approx(step)


@pytest.mark.parametrize("values", [[3.0], [0.001, 0.002], [7, 90, 44], [1e6, 3e6], []])
def test_a_linear_axis_begins_at_zero_and_holds_all(values: list[float]) -> None:
    found = axis(values, 100, may_be_log=False)
    assert found.ticks[0] == found.low == 0
    assert found.high == found.ticks[-1] >= max(values, default=0)
    assert 3 <= len(found.ticks) <= 8
    assert found.at(found.low) == 0
    assert found.at(found.high) == 100


def test_an_axis_over_decades_is_logarithmic() -> None:
    found = axis([3.0, 400.0], 100, may_be_log=True)
    assert found.is_log
    assert found.ticks == pytest.approx((2, 5, 10, 20, 50, 100, 200, 500))
    assert found.at(2) == pytest.approx(0)
    assert found.at(500) == pytest.approx(100)
    assert found.at(20) - found.at(2) == pytest.approx(found.at(200) - found.at(20))
    assert not axis([3.0, 59.0], 100, may_be_log=True).is_log


def test_ticks_are_written_short() -> None:
    assert [tick_text(value) for value in (0, 0.30000000000000004, 2500, 1e6)] == [
        "0",
        "0.3",
        "2,500",
        "1,000,000",
    ]


def line(server: str, value: float, tokens: float, ttft: float) -> Line:
    spreads = {
        "output tokens/s": Spread(tokens, tokens * 0.9, tokens * 1.1),
        "TTFT p50, ms": Spread(ttft, ttft, ttft * 1.2),
        "TPOT p50, ms": Spread(9.0, 9.0, 9.0),
    }
    return Line(server, value, spreads, {}, 0, 4)


def test_each_server_is_a_line_through_its_points() -> None:
    servers = (("a<b", "http://x"), ("c", "http://y"))
    plan = Plan(Options(), servers, Sweep("rate", (1.0, 2.0)))
    found = [line(name, rate, 100 * rate, 20 * rate) for name, _ in servers for rate in (1.0, 2.0)]
    empty = Line("c", 4.0, {}, {}, 4, 4)  # all of it failed
    tree = ET.fromstring(plot(plan, [*found, empty]))
    lines = tree.findall(f"{SVG}polyline")
    assert len(lines) == 4  # two servers in two panels
    for drawn in lines:
        points = [tuple(map(float, pair.split(","))) for pair in drawn.attrib["points"].split()]
        assert len(points) == 2
        assert points[0][0] < points[1][0]  # more tokens a second: further right
    ttft = [pair.split(",") for pair in lines[0].attrib["points"].split()]
    assert float(ttft[0][1]) > float(ttft[1][1])  # a longer time: further up
    assert len({drawn.attrib["stroke"] for drawn in lines}) == 2
    texts = [text.text for text in tree.findall(f"{SVG}text")]
    assert {"a<b", "c", "output tokens/s", "TTFT p50, ms", "TPOT p50, ms", "1", "2"} <= set(texts)
    assert "beside each point: rate" in texts


def test_a_plot_of_nothing_is_still_a_picture() -> None:
    plan = Plan(Options(), (("a", "http://x"),))
    assert len(ET.fromstring(plot(plan, [Line("a", None, {}, {}, 1, 1)]))) > 5
