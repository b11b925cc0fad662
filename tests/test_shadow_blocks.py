"""What the shadow worker refuses: blocks of others, and plans that contradict what there is."""

from dataclasses import replace

import pytest

from common.messages import Ending, RequestId, RowStart, StepPlan
from tests.shadow_plans import PROMPT, A, B, C, Drive, chunk, prepared, refused, start, whole


@pytest.fixture
def drive() -> Drive:
    return prepared()


# --- Whose blocks they are --------------------------------------------------------------------


def test_a_new_block_has_no_owner(drive: Drive) -> None:
    refused(drive, "2 has an owner", whole(C, (3, 2)), admitted=(C,))


def test_a_new_block_has_no_owner_even_if_nobody_writes_it_yet(drive: Drive) -> None:
    refused(drive, "2 has an owner", chunk(C, 0, 1, (3, 2), samples=False), admitted=(C,))


def test_a_new_block_is_not_in_use_by_a_step_in_flight(drive: Drive) -> None:
    drive.load(chunk(A, 5, 1))
    refused(drive, "2 is in use", whole(C, (3, 2)), released=("a.0",), admitted=(C,))


def test_a_new_block_is_in_use_until_its_step_is_answered(drive: Drive) -> None:
    drive.load(chunk(A, 5, 1))
    drive.execute()
    refused(drive, "2 is in use", whole(C, (3, 2)), released=("a.0",), admitted=(C,))
    drive = Drive()
    drive.do(whole(A, (0, 1, 2)), admitted=(A,))
    drive.do(chunk(A, 5, 1))
    drive.do(whole(C, (3, 2)), released=("a.0",), admitted=(C,))


def test_a_block_is_in_a_table_once(drive: Drive) -> None:
    refused(drive, "twice", whole(C, (3, 3)), admitted=(C,))
    refused(Drive(), "no block 12", whole(C, (3, 12)), admitted=(C,))


def test_a_shared_block_is_written_by_nobody(drive: Drive) -> None:
    """All but the last token are computed, and the last one lies in a block of another row."""
    other = start("b.0", PROMPT[:4], 3)
    refused(drive, "1 has an owner", whole(other, (0, 1)), admitted=(other,))


def test_nobody_writes_what_somebody_shares(drive: Drive) -> None:
    """The blocks of the next owner still hold what it has yet to overwrite."""
    drive.do(released=("a.0",))
    owner = start("c.0", (4, 3, 2, 1, 0))
    drive.do(chunk(owner, 0, 2, (3, 0, 1), samples=False), admitted=(owner,))
    short = start("b.0", (5, 6, 1), 2)
    drive.do(whole(short, (0, 4)), admitted=(short,))
    refused(drive, "0 has an owner", chunk(owner, 2, 1, samples=False))


def test_nobody_writes_what_a_step_in_flight_may_share(drive: Drive) -> None:
    drive.do(released=("a.0",))
    owner = start("c.0", (4, 3, 2, 1, 0))
    drive.do(chunk(owner, 0, 2, (3, 0, 1), samples=False), admitted=(owner,))
    short = start("b.0", (5, 6, 1), 2)
    drive.load(whole(short, (0, 4)), admitted=(short,))
    refused(drive, "0 is in use", chunk(owner, 2, 1, samples=False), released=("b.0",))


def test_the_table_is_a_range() -> None:
    drive = Drive(contiguous=True)
    refused(drive, "no range", whole(A, (4, 5, 7)), admitted=(A,))
    drive = Drive(contiguous=True)
    drive.do(whole(A, (4, 5, 6)), admitted=(A,))
    refused(drive, "no range", chunk(A, 5, 1, (8,)))


# --- Rows and chunks --------------------------------------------------------------------------


@pytest.mark.parametrize("num_computed", [-1, 5, 6])
def test_a_start_has_something_to_compute(drive: Drive, num_computed: int) -> None:
    row = start("b.0", PROMPT, num_computed)
    last = chunk(row, num_computed, 1, (0, 1, 3))
    refused(drive, "nothing to compute", last, admitted=(row,))


def test_a_start_goes_on_where_it_says(drive: Drive) -> None:
    refused(drive, "where none ended", chunk(B, 0, 6, (0, 1, 3)), admitted=(B,))


def test_plans_that_contradict_what_there_is(drive: Drive) -> None:
    refused(drive, "and has a row", admitted=(A,))
    drive.step = 0
    refused(drive, "comes twice")
    for text, plan in (
        ("has no row", StepPlan(2, released=(RequestId("c.0"),))),
        ("and no row", StepPlan(2, chunks=(chunk(C, 0, 3, (3, 4)),))),
        ("start without a chunk", StepPlan(2, admitted=(C,))),
        ("two chunks", StepPlan(2, chunks=(chunk(A, 5, 1), chunk(A, 5, 1)))),
        ("where none ended", StepPlan(2, chunks=(chunk(A, 4, 2),))),
        ("nobody knows", StepPlan(2, chunks=(chunk(A, 5, 2, (3,)),))),
        ("without blocks", StepPlan(2, chunks=(whole(C, (3,)),), admitted=(C,))),
        ("chunk of nothing", StepPlan(2, chunks=(chunk(A, 5, 0),))),
        ("samples elsewhere", StepPlan(2, chunks=(chunk(A, 5, 1, samples=False),))),
        ("samples elsewhere", StepPlan(2, chunks=(chunk(C, 0, 2, (3, 4)),), admitted=(C,))),
        ("no such prompt", StepPlan(2, chunks=(whole(C, (3, 4)),), admitted=(longer(C),))),
        ("more tokens", StepPlan(2, chunks=(chunk(A, 5, 9),))),
    ):
        fresh = Drive()
        fresh.do(whole(A, (0, 1, 2)), admitted=(A,))
        with pytest.raises(AssertionError, match=text):
            fresh.worker.load(plan)


def longer(row: RowStart) -> RowStart:
    return replace(row, num_prompt=row.num_prompt + 1)


def test_nothing_is_sampled_beyond_the_last_token() -> None:
    drive, row = Drive(), start("a.0", ending=Ending(max_tokens=1))
    drive.do(whole(row, (0, 1, 2)), admitted=(row,))
    refused(drive, "last token allowed", chunk(row, 5, 1))


def test_there_are_so_many_seats() -> None:
    rows = [start(f"{i}.0", (1,)) for i in range(4)]
    chunks = [whole(row, (i,)) for i, row in enumerate(rows)]
    refused(Drive(), "seats", *chunks, admitted=tuple(rows))
