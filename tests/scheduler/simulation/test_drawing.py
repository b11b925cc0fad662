"""Iterations as text."""

import re

from scheduler.simulation.cases import run_case
from scheduler.simulation.drawing import Recorder, draw
from scheduler.simulation.options import make_options

GIVEN = {
    "requests": "2",
    "rate": "150",
    "arrivals": "even",
    "prompt_tokens": "20",
    "output_tokens": "5",
    "block_size": "4",
    "max_step_tokens": "16",
    "prefix_cache": "off",
}


def drawing(**changes: str) -> list[str]:
    outcome = run_case(make_options(GIVEN | changes, {}), draws=True)
    [drawn] = outcome.drawings
    return drawn.splitlines()[1:]


def test_one_after_the_other() -> None:
    """The second comes in the first step, when the second is planned, and has the third.

    There it finds 15 of 16 tokens free beside the one that decodes.
    """
    assert drawing() == [
        "1 PPdddd",
        "2 ..PPdddd",
    ]


# Three that grow from 1 to 5 blocks, where there are 8.
SHORT = {"requests": "3", "num_blocks": "8", "prompt_tokens": "4", "output_tokens": "16"}


def test_a_row_that_must_go_is_computed_anew() -> None:
    first, *_, last = drawing(**SHORT)
    assert re.fullmatch(r"1 P[d-]+", first)
    assert re.fullmatch(r"3 +\.+Pd+-*\.+R[d-]+", last)


def test_a_row_that_must_go_waits_in_host_memory() -> None:
    *_, last = drawing(**SHORT, preemption="swap")
    assert re.fullmatch(r"3 +\.+Pd+-*s+[d-]+", last)


def test_iterations_and_rows_are_bounded_and_it_is_said() -> None:
    lines = drawing(requests="6", timeline_steps="4", timeline_from="2")
    assert lines[0] == "1 Pddd"
    assert lines[-1] == "(later iterations are not drawn: --timeline-steps, --timeline-from)"
    assert all(len(line) <= 2 + 4 for line in lines[:-1])
    recorder = Recorder(1, 8)
    recorder.columns = [{"a": "P", "b": "."}, {"a": "d"}]  # type: ignore[dict-item]
    assert draw(recorder, "w0", most_rows=1).splitlines()[1:] == [
        "a Pd",
        "(1 more requests are not drawn: --timeline-rows)",
    ]


def test_nothing_is_remembered_unless_asked() -> None:
    assert run_case(make_options(GIVEN, {})).drawings == ()
