"""prefill=whole and prefill=exclusive, beside what chunked does."""

from typing import Any

import pytest

from tests.scheduler.core.driving import Drive, chunks, started


def decoding(prefill: str, **fields: Any) -> Drive:
    """`a` and `b` decode."""
    drive = Drive(prefill=prefill, max_request_tokens=16, **fields)
    drive.add("a", 2, max_tokens=9)
    drive.add("b", 3, max_tokens=9)
    drive.step()
    return drive


# --- whole ------------------------------------------------------------------------------------


def test_a_prompt_is_computed_in_one_step_beside_those_that_decode() -> None:
    drive = decoding("whole")
    drive.add("c", 14, max_tokens=2)
    assert chunks(drive.step()) == [("a", 2, 1), ("b", 3, 1), ("c", 0, 14)]


def test_a_prompt_that_the_step_has_no_room_for_waits_and_is_not_cut() -> None:
    drive = Drive(prefill="whole", max_request_tokens=16)
    drive.add("a", 10, max_tokens=5)
    drive.add("b", 7, max_tokens=5)
    assert chunks(drive.step()) == [("a", 0, 10)]
    assert drive.passed == [("b", "no_tokens")]
    assert chunks(drive.step()) == [("a", 10, 1), ("b", 0, 7)]


def test_a_prompt_that_needs_all_of_a_step_gets_one_to_itself() -> None:
    drive = decoding("whole")
    drive.add("c", 15, max_tokens=1)
    assert chunks(drive.step()) == [("c", 0, 15)]
    assert chunks(drive.step()) == [("a", 2, 1), ("b", 3, 1)]


def test_those_that_decode_go_on_while_such_a_prompt_lacks_a_seat() -> None:
    drive = decoding("whole", max_running=2)
    drive.add("c", 15, max_tokens=1)
    assert chunks(drive.step()) == [("a", 2, 1), ("b", 3, 1)]
    assert set(drive.passed) == {("c", "no_seat")}


@pytest.mark.parametrize("prefill", ["whole", "exclusive"])
def test_what_a_preemption_dropped_is_computed_again_in_one_chunk(prefill: str) -> None:
    drive = Drive(prefill=prefill, num_blocks=4, block_size=2, max_request_tokens=16)
    drive.add("old", 2, max_tokens=6)
    young = drive.add("young", 1, max_tokens=6)
    while "young" not in drive.preempted:
        drive.step()
    known = len(young.tokens)
    assert known > 1
    while not started(plan := drive.step()):
        pass
    assert ("young", 0, known) in chunks(plan)


# --- exclusive --------------------------------------------------------------------------------


def test_prompts_go_alone_and_before_those_that_decode() -> None:
    drive = decoding("exclusive")
    drive.add("c", 5, max_tokens=9)
    drive.add("d", 5, max_tokens=9)
    assert chunks(drive.step()) == [("c", 0, 5), ("d", 0, 5)]
    assert [name for name, _, _ in chunks(drive.step())] == ["a", "b", "c", "d"]


def test_those_that_decode_go_on_while_nobody_can_be_admitted() -> None:
    drive = decoding("exclusive", max_running=2)
    drive.add("c", 5, max_tokens=9)
    assert chunks(drive.step()) == [("a", 2, 1), ("b", 3, 1)]
    assert drive.passed == [("c", "no_seat")]


def test_prompts_of_one_step_are_as_many_as_fit_whole() -> None:
    drive = Drive(prefill="exclusive", max_request_tokens=16)
    for name in "abc":
        drive.add(name, 7, max_tokens=5)
    assert chunks(drive.step()) == [("a", 0, 7), ("b", 0, 7)]
    assert chunks(drive.step()) == [("c", 0, 7)]


# --- chunked ----------------------------------------------------------------------------------


def test_chunked_cuts_the_prompt_that_the_others_let_wait() -> None:
    drive = decoding("chunked")
    drive.add("c", 15, max_tokens=1)
    assert chunks(drive.step()) == [("a", 2, 1), ("b", 3, 1), ("c", 0, 14)]
