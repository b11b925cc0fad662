"""The bound on what rows will take holds for whatever they do, and is below the sum of all."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.block_pool import blocks_for
from scheduler.core.peak import Growth, peak_blocks
from tests.scheduler.core.driving import Drive, started

Row = tuple[int, int]  # tokens stored, tokens to come
ROWS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 40)), max_size=12)


def growth(row: Row, block_size: int) -> Growth:
    stored, to_come = row
    blocks = blocks_for(stored, block_size)
    return Growth(blocks, to_come, blocks_for(stored + to_come, block_size) - blocks)


@given(decoding=ROWS, others=ROWS, block_size=st.integers(1, 5), lag=st.integers(0, 8))
def test_it_is_never_exceeded(
    decoding: list[Row], others: list[Row], block_size: int, lag: int
) -> None:
    """All go to their longest ends; who keeps its blocks for good grows at once as it may."""
    taken = []
    for step in range(60):
        alive = [row for row in decoding if step <= row[1] + lag]
        taken.append(
            sum(
                blocks_for(stored + min(step, to_come), block_size)
                for stored, to_come in (*alive, *others)
            )
        )
    parts = [[growth(row, block_size) for row in rows] for rows in (decoding, others)]
    peak = peak_blocks(parts[0], parts[1], block_size, lag)
    assert max(taken) <= peak
    if block_size == 1:
        assert peak == max(taken)


def test_short_answers_make_room_for_long_ones() -> None:
    """Three of 1 + 9 tokens that end one after the other never take 30 blocks."""
    rows = [Growth(10, 0, 0), Growth(6, 4, 4), Growth(2, 8, 8)]
    assert peak_blocks(rows, [], 1, 0) == 18


def never(num_blocks: int) -> Drive:
    drive = Drive(num_blocks=num_blocks, block_size=1, max_step_tokens=8, preemption="never")
    drive.add("a", 1, max_tokens=10)
    for _ in range(8):
        drive.step()
    drive.add("b", 1, max_tokens=10, arrival=1)
    return drive


def test_never_admits_who_grows_into_what_others_leave() -> None:
    """At its end a has 10 tokens, and b 4 by when they are free; both together would have 20."""
    drive = never(num_blocks=15)
    assert started(drive.step()) == ["b"]
    while drive.scheduler.requests:
        drive.step()
        assert drive.scheduler.last.short == []
        drive.take_ended()


def test_never_admits_nobody_for_whom_it_would_be_too_early() -> None:
    assert started(never(num_blocks=12).step()) == []
