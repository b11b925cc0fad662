"""What once went wrong in the core, and stays right: each is a whole kind of trouble."""

import pytest

from common.messages import FinishReason, RequestId
from scheduler.core.request import Status
from tests.scheduler.core.driving import Drive, names, request, started
from tests.scheduler.core.loads import Loop, core
from tests.scheduler.core.loads import request as load
from tests.scheduler.core.test_predicted_wait import busy, wait_of
from tests.scheduler.core.test_prefix_sharing import FIRST, add, sharing

# --- make_way: displaced in vain --------------------------------------------------------------


def test_nobody_is_displaced_for_a_range_that_will_not_be_there() -> None:
    """Two ranges of two are no range of four."""
    drive = Drive(
        kv="reserved",
        num_blocks=6,
        block_size=1,
        max_running=6,
        depth=0,
        aging_seconds=100.0,
        max_request_tokens=6,
    )
    for name, priority in (("v1", 9), ("keep", 0), ("v2", 8)):
        made = drive.add(name, 1, max_tokens=2)  # admitted in this order: each a range of two
        made.priority = priority
    drive.plan()
    for made in drive.scheduler.running.rows:
        made.rank = (made.priority * 100.0, made.rank[1])
    drive.scheduler.running.rows.sort(key=lambda row: row.rank)
    drive.answer()
    drive.add("head", 1, max_tokens=4, arrival=1, priority=0)
    drive.step()
    assert drive.preempted == [] or started(drive.step()) == ["head"]


def test_nobody_is_displaced_for_more_blocks_than_needed() -> None:
    """The growth of `a` is nobody's need any more once `a` has left."""
    drive = Drive(max_running=4, aging_seconds=100.0, depth=0, num_blocks=7)
    drive.add("a", 4, max_tokens=8, arrival=0, priority=5)
    drive.add("b", 4, max_tokens=8, arrival=1, priority=4)
    drive.step()
    drive.add("c", 13, arrival=2, max_tokens=3)  # 4 blocks; free are 5, of which b wants two
    drive.step()
    assert drive.preempted == ["a"]
    assert started(drive.step()) == ["c"]


def test_nobody_is_displaced_where_the_word_given_to_others_keeps_the_newcomer_out() -> None:
    drive = Drive(num_blocks=12, block_size=1, max_preemptions=1, aging_seconds=1000.0, depth=0)
    drive.add("p", 2, max_tokens=6, priority=5, preemptions=1)
    drive.add("v", 3, max_tokens=3, priority=4)
    drive.step()
    drive.add("head", 4, max_tokens=8, arrival=1, priority=0)
    drive.step()
    drive.step()
    assert drive.preempted == [] or started(drive.step()) == ["head"]


def test_nobody_is_displaced_for_one_that_will_wait_for_anothers_prefix() -> None:
    drive = Drive(
        prefix_cache=True,
        max_running=2,
        max_step_tokens=8,
        num_blocks=64,
        depth=0,
        aging_seconds=1000.0,
    )
    victim = request("v", 0, 20, tokens=(90, 91, 92))
    victim.priority = 5
    drive.scheduler.add(victim)
    drive.step()
    drive.add("a", 41, arrival=1)
    drive.step()
    drive.add("head", 42, arrival=2)
    drive.step()
    drive.step()
    drive.step()
    assert victim.status is Status.RUNNING or "head" in drive.running, (
        "displaced, and the seat is empty"
    )


# --- the cache --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["held", "preempted"])
def test_blocks_of_a_row_that_failed_after_it_lost_its_row_are_not_shared(how: str) -> None:
    drive = sharing()
    made = add(drive, "a", *FIRST)
    drive.plan()
    drive.plan()
    drive.answer()
    if how == "held":
        drive.scheduler.hold(made.id)
    else:
        drive.scheduler._planner._preempt(made, drive.scheduler.last, is_displaced=False)
    drive.answer(failing=("a",))
    assert made.status is Status.FINISHED
    assert drive.scheduler.cached_tokens(request("b", 0, tokens=FIRST)) == 0


# --- predicted_wait ---------------------------------------------------------------------------


def test_where_all_seats_are_taken_the_first_in_line_waits_too() -> None:
    loop = busy(max_running=6)
    while len(loop.core.running) < 6 or len(loop.core.waiting):
        loop.core.add(
            load(50_000 + len(loop.ended) * 10 + len(loop.core.running), 8, 24)
        ) if not len(loop.core.waiting) and len(loop.core.running) < 6 else None
        loop.turn()
    foreseen, found = wait_of(loop, load(20_000, 8, 2))
    assert found > 0.02
    assert found / 3 <= foreseen <= found * 3


def test_the_length_of_answers_is_known_after_the_first_ends() -> None:
    scheduler = core(max_running=2, num_blocks=100, prefix_cache=False)
    loop = Loop(scheduler, length=lambda _: 24)
    for number in range(4):
        scheduler.add(load(number, 4, 24))
    while len(loop.ended) < 4:
        loop.turn()
    assert scheduler.answer_tokens == pytest.approx(24, rel=0.2)


def test_cancelled_in_line_is_no_answer_of_length_zero() -> None:
    loop = busy(max_running=6)
    before = loop.core.answer_tokens

    for number in range(60):
        loop.core.add(load(90_000 + number, 8, 24))
        loop.core.end(RequestId(f"{90_000 + number}.0"), FinishReason.CANCELLED)
    assert loop.core.answer_tokens == pytest.approx(before, rel=0.1)


# --- others -----------------------------------------------------------------------------------


def test_the_refusal_says_what_is_too_large() -> None:
    drive = Drive(kv="reserved", reservation="maximum", num_blocks=8, max_request_tokens=100)
    why = drive.scheduler.never_fits(request("a", 3, 2))
    assert why
    assert not why.startswith("5 tokens of prompt and answer are more than the 32"), why


def test_new_tenants_with_earlier_names_do_not_starve_one_that_waits() -> None:
    scheduler = core(policy="fair", max_running=1)
    loop = Loop(scheduler, length=lambda _: 1)
    scheduler.add(load(999, 3, 1, "w"))
    loop.turn()
    old = load(0, 3, 1, "x")
    scheduler.add(old)
    for number in range(1, 60):
        scheduler.add(load(number, 3, 1, f"a{number:03}"))
        loop.turn()
    assert old.status is Status.FINISHED


def test_a_tenant_whose_requests_all_wait_for_a_prefix_was_not_away() -> None:
    """It is lifted to who waits when they stand in line again, and loses what it is owed."""
    drive = Drive(policy="fair", prefix_cache=True, max_running=2, max_step_tokens=64, depth=0)
    shares = drive.scheduler.shares
    for name in ("x1", "x2", "x3"):
        drive.add(name, 33, max_tokens=2, tenant="x")
    for i in range(3):
        made = request(f"y{i}", 0, 1, tokens=(500 + i, 501, 502), arrival=i + 9)
        made.tenant = "y"
        drive.scheduler.add(made)
    shares.charge_input("y", 500)
    drive.plan()
    drive.answer()
    assert shares.of("x") == 33 + 2


def test_rows_of_a_drained_tenant_end_even_if_they_are_preempted() -> None:
    drive = Drive(num_blocks=4, block_size=2, depth=0)
    drive.add("old", 2, max_tokens=6, tenant="y")
    drive.add("young", 1, max_tokens=6, tenant="x")
    drive.step()
    drive.scheduler.drain_tenant("x")
    while drive.scheduler.requests and (plan := drive.scheduler.schedule()):
        drive.worker.load(plan)
        drive.answer()
        drive.take_ended()
    assert sorted(names([made.id for made in drive.ended])) == ["old", "young"]
