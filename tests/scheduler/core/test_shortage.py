"""Who steps back when blocks run short, asserted on the plan."""

import pytest

from scheduler.core.decision import Reason
from scheduler.core.request import Request, Status
from tests.scheduler.core.driving import Drive, chunks, names, request, started


def full() -> tuple[Drive, Request, Request]:
    """Two requests hold two of four blocks each, both full after the next step."""
    drive = Drive(num_blocks=4, block_size=2, depth=1)
    old = drive.add("old", 2, max_tokens=6)
    young = drive.add("young", 1, max_tokens=6)
    assert chunks(drive.step()) == [("old", 0, 2), ("young", 0, 1)]
    assert chunks(drive.step()) == [("old", 2, 1), ("young", 1, 1)]
    return drive, old, young


def test_the_youngest_is_preempted_and_its_blocks_wait_for_the_step_in_flight() -> None:
    drive, old, young = full()
    drive.add("c", 1, max_tokens=5)
    assert chunks(drive.plan()) == [("old", 3, 1), ("young", 2, 1)]
    plan = drive.plan()
    assert (names(plan.released), started(plan), chunks(plan)) == (["young"], [], [])
    assert names([who for who, _ in drive.scheduler.last.preempted]) == ["young"]
    assert names(drive.scheduler.last.short) == ["old"]
    assert (young.status, young.preemptions, young.num_promised) == (Status.WAITING, 1, 1)
    assert drive.scheduler.pool.num_coming == 2
    drive.answer()
    assert young.num_promised == 0
    plan = drive.plan()
    assert chunks(plan) == [("old", 4, 1)]
    assert len(plan.chunks[0].new_blocks) == 1
    assert old.preemptions == 0
    assert drive.finish() == ["old", "young", "c"]


def test_a_preempted_one_comes_back_in_front_with_all_that_it_knew() -> None:
    drive, _, young = full()
    drive.add("c", 1, max_tokens=5)
    for _ in range(3):
        drive.step()
    assert young.status is Status.WAITING
    known = list(young.tokens)
    while not (plan := drive.step()).admitted:
        pass
    assert started(plan)[0] == "young"
    assert plan.admitted[0].tokens == tuple(known)
    assert ("young", 0, len(known)) in chunks(plan)


def test_nobody_comes_back_while_its_tokens_are_promised() -> None:
    drive = Drive(depth=3)
    made = drive.add("a", 2)
    drive.plan()
    drive.scheduler.hold(made.id)
    drive.scheduler.release(made.id)
    assert chunks(drive.plan()) == []
    assert drive.scheduler.last.passed == [("a.0", Reason.PROMISED)]
    drive.answer()
    assert chunks(drive.plan()) == [("a", 0, 3)]


def test_results_of_a_former_life_do_not_count_as_computed() -> None:
    drive = Drive(depth=3, max_step_tokens=4)
    made = drive.add("a", 12)
    drive.plan()
    drive.plan()
    drive.scheduler.hold(made.id)
    drive.scheduler.release(made.id)
    assert chunks(drive.plan()) == [("a", 0, 4)]
    drive.answer()
    drive.answer()
    assert made.num_computed == 0
    drive.answer()
    assert made.num_computed == 4


@pytest.mark.parametrize(("rows", "victims"), [("abc", ["c"]), ("abcde", ["e", "d"])])
def test_as_many_are_preempted_as_blocks_are_needed(rows: str, victims: list[str]) -> None:
    """Each holds two blocks and wants a third: what comes back from one is enough for two."""
    drive = Drive(num_blocks=2 * len(rows), block_size=2, max_running=5)
    for name in rows:
        drive.add(name, 1, max_tokens=5)
    for _ in range(3):
        drive.step()
    drive.plan()
    plan = drive.plan()
    assert names([who for who, _ in drive.scheduler.last.preempted]) == victims
    assert names(drive.scheduler.last.short) == [name for name in rows if name not in victims]
    assert plan.chunks == ()


def test_one_that_leaves_by_itself_spares_a_victim() -> None:
    drive = Drive(num_blocks=6, block_size=4)
    drive.add("old", 3, max_tokens=9)
    drive.add("leaving", 3, max_tokens=6)
    drive.add("young", 1, max_tokens=8)
    for _ in range(5):
        drive.step()
    assert chunks(drive.plan()) == [("old", 7, 1), ("leaving", 7, 1), ("young", 5, 1)]
    assert chunks(drive.plan()) == [("young", 6, 1)]
    assert names(drive.scheduler.last.short) == ["old"]
    assert drive.scheduler.last.preempted == []


def test_one_that_leaves_by_itself_is_no_victim() -> None:
    """Four rows fill ten blocks; `end` has its last token promised, and three want one more."""
    drive = Drive(num_blocks=10, block_size=2)
    for name, num_prompt, max_tokens in (("a", 3, 9), ("b", 3, 9), ("c", 1, 9), ("end", 1, 4)):
        drive.add(name, num_prompt, max_tokens)
    for _ in range(3):
        drive.step()
    assert drive.scheduler.pool.num_free == 0
    drive.plan()
    assert drive.scheduler.schedule() is None
    assert drive.preempted == []
    assert names(drive.scheduler.last.short) == ["a", "b", "c"]


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    drive = Drive(num_blocks=6, block_size=2)
    drive.add("old", 2, max_tokens=8, arrival=0)
    drive.add("young", 7, max_tokens=5, arrival=2)
    for _ in range(3):
        drive.step()
    drive.add("between", 1, max_tokens=2, arrival=1)
    plan = drive.step()
    assert names([who for who, _ in drive.scheduler.last.preempted]) == ["young"]
    assert drive.scheduler.last.passed == [("young.0", Reason.SHORTAGE)]
    assert chunks(plan) == [("old", 4, 1)]
    assert started(drive.step()) == [], "who was preempted goes first, and lacks blocks still"


def test_the_youngest_waits_rather_than_lose_what_it_has_computed() -> None:
    drive = Drive(num_blocks=4, block_size=2)
    drive.add("old", 3, max_tokens=4)
    young = drive.add("young", 1, max_tokens=6)
    for _ in range(2):
        drive.step()
    drive.add("c", 1, max_tokens=1)
    assert chunks(drive.step()) == [("old", 4, 1)]
    assert names(drive.scheduler.last.short) == ["young"]
    assert drive.scheduler.rows()[1].reason is Reason.NO_BLOCKS
    assert drive.passed == [("c", "shortage")]
    assert (young.status, young.num_computed) == (Status.RUNNING, 2)
    assert chunks(drive.step()) == [("old", 5, 1)]
    assert chunks(drive.step())[0] == ("young", 2, 1)


def test_who_was_preempted_too_often_comes_back_for_good() -> None:
    drive = Drive(num_blocks=6, block_size=2, max_preemptions=1)
    drive.add("old", 2, max_tokens=7, arrival=0)
    young = drive.add("young", 1, max_tokens=7, arrival=1, preemptions=1)
    for _ in range(3):
        assert started(drive.step()) in ([], ["old"])
        assert drive.scheduler.last.passed == [(young.id, Reason.NO_BLOCKS)]
    assert drive.finish() == ["old", "young"]


def test_one_that_comes_back_for_good_may_begin_with_what_is_cached() -> None:
    """It needs all of memory, of which the hits are a part."""
    drive = Drive(num_blocks=4, prefix_cache=True)
    drive.add("a", 9, max_tokens=1)
    drive.finish()
    made = drive.add("b", 9, max_tokens=8, preemptions=3)
    assert started(drive.step()) == ["b"]
    assert made.num_cached == 8
    assert drive.finish() == ["b"]


def test_hits_that_nobody_owns_are_no_supply_for_the_rest() -> None:
    """`b` for good needs five blocks, of which two are idle hits; `row` one more; free are five."""
    drive = Drive(num_blocks=6, prefix_cache=True)
    drive.add("a", 9, max_tokens=1)
    drive.finish()
    drive.scheduler.add(request("row", 0, 7, tokens=(50, 51)))
    drive.step()
    drive.add("b", 9, max_tokens=12, preemptions=3)
    assert started(drive.step()) == []
    assert drive.finish() == ["row", "b"]


def test_nobody_older_is_let_in_where_that_would_break_the_word() -> None:
    drive = Drive(num_blocks=6, block_size=2, max_preemptions=1)
    drive.add("young", 1, max_tokens=7, arrival=1, preemptions=1)
    drive.step()
    drive.add("old", 1, max_tokens=7, arrival=0)
    drive.step()
    assert drive.scheduler.last.passed == [("old.0", Reason.NO_BLOCKS)]
    assert drive.finish() == ["young", "old"]
