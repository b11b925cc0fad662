"""What the shadow worker reads and copies: right without a fault, and found where there is one."""

import pytest

from common.messages import FinishReason, Swap
from tests.shadow_plans import (
    PROMPT,
    A,
    B,
    C,
    Drive,
    back,
    chunk,
    fails,
    pairs,
    prepared,
    refused,
    start,
    swapped_out,
    whole,
)


@pytest.fixture
def drive() -> Drive:
    return prepared()


# --- Without a fault --------------------------------------------------------------------------


def test_rows_compute_sample_and_end(drive: Drive) -> None:
    result = drive.do(chunk(A, 5, 1), whole(C, (3, 4)), admitted=(C,))
    assert [(s.request_id, s.position, s.token) for s in result.sampled] == [
        ("a.0", 1, 3),
        ("c.0", 0, 3),
    ]
    drive.load(chunk(A, 6, 1, (5,)), chunk(C, 3, 1))
    drive.load(chunk(A, 7, 1), chunk(C, 4, 1, (6,)))
    assert [s.finish for s in drive.execute(token=0).sampled] == [FinishReason.STOP] * 2
    assert drive.run().sampled == ()


def test_a_shared_prefix_is_read_by_all_and_outlives_who_wrote_it(drive: Drive) -> None:
    short = start("d.0", PROMPT, 4)
    drive.do(whole(B, (0, 1, 3)), whole(short, (0, 1, 4)), admitted=(B, short))
    drive.do(chunk(B, 6, 1, (5,)), released=("a.0",))
    drive.do(whole(C, (2, 6)), chunk(B, 7, 1), chunk(short, 5, 1), admitted=(C,))


def test_idle_cached_blocks_are_shared_again_or_written_anew(drive: Drive) -> None:
    drive.do(released=("a.0",))
    drive.do(whole(B, (0, 1, 3)), admitted=(B,))
    drive.do(released=("b.0",))
    drive.do(whole(C, (1, 0)), admitted=(C,))


def test_swapped_out_into_host_memory_and_back_elsewhere(drive: Drive) -> None:
    drive.do(
        whole(C, (2, 0)),
        released=("a.0",),
        admitted=(C,),
        swap_out=pairs((0, 3), (1, 2), (2, 1)),
    )
    again = back(A, 3)
    drive.do(
        whole(again, (8, 1, 9, 3)),
        chunk(C, 3, 1),
        admitted=(again,),
        swap_in=pairs((8, 3), (1, 2), (9, 1)),
    )
    drive.do(chunk(again, 6, 1), chunk(C, 4, 1, (4,)))


def test_swapped_out_while_a_step_is_in_flight(drive: Drive) -> None:
    drive.load(chunk(A, 5, 1))
    drive.load(released=("a.0",), swap_out=pairs((0, 0), (1, 1), (2, 2)))
    drive.run()
    again = back(A, 3, 3)
    drive.do(
        whole(again, (0, 1, 2, 3)),
        admitted=(again,),
        swap_in=pairs((0, 0), (1, 1), (2, 2)),
    )


def test_a_host_block_keeps_what_was_swapped_out(drive: Drive) -> None:
    again = swapped_out(drive)
    swap_in = pairs((4, 0), (5, 1), (6, 2))
    drive.do(whole(again, (4, 5, 6)), admitted=(again,), swap_in=swap_in)
    drive.do(whole(C, (4, 6)), released=("a.0",), admitted=(C,))
    swap_in = pairs((7, 0), (8, 1), (9, 2))
    drive.do(whole(again, (7, 8, 9)), admitted=(again,), swap_in=swap_in)


def test_a_row_that_failed_may_be_swapped_out_unseen() -> None:
    drive = Drive()
    drive.load(whole(A, (0, 1, 2)), admitted=(A,))
    drive.load(released=("a.0",), swap_out=pairs((0, 0)))
    assert drive.execute(failing=("a.0",)).errors == {"a.0": "broken"}
    drive.run()


def test_a_range(drive: Drive) -> None:
    drive = Drive(contiguous=True)
    drive.do(whole(A, (4, 5, 6)), admitted=(A,))
    drive.do(chunk(A, 5, 1, (7,)))


# --- What is read -----------------------------------------------------------------------------


def test_an_equal_block_behind_another_prefix_is_not_the_same(drive: Drive) -> None:
    other = start("b.0", (5, 1, 7, 8, 9), 4)
    drive.do(whole(start("c.0", (5, 1)), (3,)), admitted=(start("c.0", (5, 1)),))
    fails(drive, "reads", whole(other, (3, 1, 4)), admitted=(other,))


def test_an_equal_block_at_another_position_is_not_the_same() -> None:
    drive, row = Drive(), start("a.0", (7,) * 5)
    drive.do(whole(row, (0, 1, 2)), admitted=(row,))
    other = start("b.0", (7,) * 5, 4)
    fails(drive, "reads", whole(other, (1, 0, 3)), admitted=(other,))


def test_other_tokens_are_not_the_same(drive: Drive) -> None:
    other = start("b.0", (5, 6, 7, 1, 9), 4)
    fails(drive, "reads", whole(other, (0, 1, 3)), admitted=(other,))


def test_nobody_wrote_what_is_taken_for_computed(drive: Drive) -> None:
    other = start("b.0", (*PROMPT[:4], 9, 4, 4), 6)
    fails(drive, "reads None", whole(other, (0, 1, 7, 8)), admitted=(other,))


def test_nobody_shares_what_is_computed_in_the_same_step() -> None:
    drive = Drive()
    drive.load(chunk(A, 0, 4, (0, 1, 2), samples=False), chunk(B, 4, 2, (0, 1, 3)), admitted=(A, B))
    with pytest.raises(AssertionError, match="reads None"):
        drive.run()


def test_what_a_failed_row_was_to_compute_is_not_there() -> None:
    drive = Drive()
    drive.load(whole(A, (0, 1, 2)), admitted=(A,))
    drive.execute(failing=("a.0",))
    fails(drive, "reads None", whole(B, (0, 1, 3)), admitted=(B,))


def test_what_an_ended_row_was_to_compute_is_not_there(drive: Drive) -> None:
    drive.load(chunk(A, 5, 1))
    drive.load(chunk(A, 6, 1, (3,)))
    drive.execute(token=0)
    drive.run()
    other = start("b.0", (*PROMPT, 3, 0, 1, 4), 8)
    fails(drive, "reads None", whole(other, (0, 1, 2, 3, 5)), admitted=(other,))


# --- What is swapped --------------------------------------------------------------------------


def test_blocks_come_back_in_another_order(drive: Drive) -> None:
    again = swapped_out(drive)
    swap_in = pairs((4, 1), (5, 0), (6, 2))
    fails(drive, "reads", whole(again, (4, 5, 6)), admitted=(again,), swap_in=swap_in)


def test_a_block_does_not_come_back(drive: Drive) -> None:
    again = swapped_out(drive)
    in_ = pairs((4, 0), (5, 1))
    fails(drive, "reads None", whole(again, (4, 5, 6)), admitted=(again,), swap_in=in_)


def test_a_host_block_was_written_anew_meanwhile(drive: Drive) -> None:
    again = swapped_out(drive)
    drive.do(whole(C, (0, 1)), admitted=(C,))
    drive.do(released=("c.0",), swap_out=pairs((0, 1)))
    swap_in = pairs((4, 0), (5, 1), (6, 2))
    fails(drive, "reads", whole(again, (4, 5, 6)), admitted=(again,), swap_in=swap_in)


def test_out_comes_before_in_within_a_plan(drive: Drive) -> None:
    again = swapped_out(drive)
    drive.do(whole(C, (0, 1)), admitted=(C,))
    fails(
        drive,
        "reads",
        whole(again, (4, 5, 6)),
        released=("c.0",),
        admitted=(again,),
        swap_out=pairs((0, 0), (1, 3)),
        swap_in=pairs((4, 0), (5, 1), (6, 2)),
    )


def test_a_block_is_swapped_out_too_late(drive: Drive) -> None:
    drive.do(whole(C, (1, 3)), released=("a.0",), admitted=(C,))
    drive.do(swap_out=pairs((0, 0), (1, 1), (2, 2)))
    again = back(A, 3)
    swap_in = pairs((4, 0), (5, 1), (6, 2))
    fails(drive, "reads", whole(again, (4, 5, 6)), admitted=(again,), swap_in=swap_in)


def test_what_was_never_swapped_out_cannot_come_back(drive: Drive) -> None:
    again = swapped_out(drive)
    swap_in = pairs((4, 0), (5, 1), (6, 3))
    refused(drive, "into 3", whole(again, (4, 5, 6)), admitted=(again,), swap_in=swap_in)


def test_nothing_is_swapped_into_what_others_have(drive: Drive) -> None:
    again = swapped_out(drive)
    drive.do(whole(C, (4, 7)), admitted=(C,))
    swap_in = pairs((4, 0), (5, 1), (6, 2))
    refused(drive, "4 has an owner", whole(again, (4, 5, 6)), admitted=(again,), swap_in=swap_in)


def test_nothing_is_swapped_into_what_a_step_in_flight_may_touch(drive: Drive) -> None:
    again = swapped_out(drive)
    drive.load(whole(C, (4, 7)), admitted=(C,))
    refused(
        drive,
        "4 is in use",
        whole(again, (4, 5, 6)),
        released=("c.0",),
        admitted=(again,),
        swap_in=pairs((4, 0), (5, 1), (6, 2)),
    )


def test_a_block_that_was_swapped_in_is_for_somebody(drive: Drive) -> None:
    again = swapped_out(drive)
    swap_in = pairs((4, 0), (5, 1), (6, 2), (7, 0))
    refused(drive, "nobody", whole(again, (4, 5, 6)), admitted=(again,), swap_in=swap_in)


@pytest.mark.parametrize(
    ("way", "which", "text"),
    [
        ("swap_out", pairs((0, 4)), "no host block 4"),
        ("swap_out", pairs((0, -1)), "no host block -1"),
        ("swap_out", pairs((12, 0)), "no block 12"),
        ("swap_out", pairs((0, 0), (1, 0)), "swapped out into one"),
        ("swap_in", pairs((-1, 0)), "no block -1"),
        ("swap_in", pairs((3, 0), (3, 1)), "swapped in into one"),
    ],
)
def test_swaps_that_cannot_be(drive: Drive, way: str, which: tuple[Swap, ...], text: str) -> None:
    swapped_out(drive)
    refused(drive, text, **{way: which})
