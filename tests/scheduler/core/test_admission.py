"""Who takes part in a step, asserted on the plan."""

from common.messages import RequestId
from scheduler.core.decision import Reason
from scheduler.core.request import Status
from tests.scheduler.core.driving import TOKEN, Drive, chunks, names, started


def test_who_decodes_goes_first_and_a_prompt_takes_what_is_left() -> None:
    drive = Drive(max_step_tokens=8)
    drive.add("a", 3)
    drive.add("b", 4)
    drive.step()
    drive.add("c", 20)
    assert chunks(drive.step()) == [("a", 3, 1), ("b", 4, 1), ("c", 0, 6)]
    assert chunks(drive.step()) == [("a", 4, 1), ("b", 5, 1), ("c", 6, 6)]


def test_an_older_prompt_does_not_starve_younger_ones_that_decode() -> None:
    drive = Drive(max_step_tokens=8)
    drive.add("young", 3, arrival=5)
    drive.step()
    drive.add("old", 30, arrival=1)
    assert chunks(drive.step()) == [("young", 3, 1), ("old", 0, 7)]
    assert chunks(drive.step()) == [("young", 4, 1), ("old", 7, 7)]


def test_the_line_goes_by_arrival_and_not_by_call() -> None:
    drive = Drive(max_running=2)
    for name, arrival in (("c", 3), ("a", 1), ("b", 2)):
        drive.add(name, 2, arrival=arrival)
    assert started(drive.plan()) == ["a", "b"]
    assert [seen.request_id for seen in drive.scheduler.line(9)] == ["c.0"]


def test_a_seat_that_empties_is_filled_by_the_next_plan() -> None:
    drive = Drive(max_running=1)
    drive.add("a", 2, max_tokens=1)
    drive.add("b", 2, max_tokens=1)
    drive.step()
    plan = drive.plan()
    assert (names(plan.released), started(plan)) == (["a"], ["b"])


def test_an_admission_needs_the_blocks_of_all_known_tokens() -> None:
    drive = Drive(num_blocks=8, max_step_tokens=5)
    drive.add("a", 15, max_tokens=4)
    assert drive.plan().chunks[0].new_blocks == (3, 2, 1, 0)
    drive.add("b", 17, max_tokens=3)
    drive.add("c", 1)
    for _ in range(4):
        drive.answer()
        assert started(drive.plan()) == []
    assert drive.scheduler.pool.num_free == 3
    assert drive.scheduler.last.passed == [("b.0", Reason.NO_BLOCKS)]
    assert drive.scheduler.line(9)[1].reason is Reason.BEHIND


def test_an_admission_leaves_a_block_for_each_that_grows() -> None:
    drive = Drive(num_blocks=4, block_size=4)
    drive.add("a", 4, max_tokens=12)
    drive.add("b", 4, max_tokens=4)
    drive.add("c", 4, max_tokens=1)
    assert started(drive.plan()) == ["a", "b"]
    assert drive.scheduler.last.passed == [("c.0", Reason.NO_BLOCKS)]


def test_those_that_need_no_more_blocks_want_no_headroom() -> None:
    drive = Drive(num_blocks=3, block_size=4)
    for name in "abc":
        drive.add(name, 2, max_tokens=3)
    assert started(drive.plan()) == ["a", "b", "c"]


def test_held_requests_do_not_block_the_line() -> None:
    drive = Drive()
    drive.add("a", 2, held=True)
    drive.add("b", 2)
    assert started(drive.step()) == ["b"]
    assert [seen.reason for seen in drive.scheduler.line(9)] == [Reason.HELD]
    drive.scheduler.release(RequestId("a.0"))
    assert started(drive.step()) == ["a"]


def test_one_that_runs_and_is_held_gives_up_its_row_until_released() -> None:
    drive = Drive()
    made = drive.add("a", 2)
    drive.plan()
    drive.plan()
    drive.scheduler.hold(made.id)
    drive.answer()
    plan = drive.plan()
    assert (names(plan.released), plan.chunks) == (["a"], ())
    assert (made.status, made.held, made.preemptions) == (Status.WAITING, True, 0)
    drive.scheduler.release(made.id)
    drive.answer()
    assert drive.scheduler.schedule() is not None
    assert made.tokens == [1, 2, TOKEN, TOKEN]
    assert (made.num_planned, made.num_promised) == (4, 1)
