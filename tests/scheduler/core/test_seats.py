"""Seats: a row that has its last token promised leaves its seat to the very next step."""

from tests.scheduler.core.driving import Drive, chunks, started


def in_flight(max_rows: int, **choices: object) -> Drive:
    """Two seats; `short` has two iterations, `long` six; the first step computes."""
    drive = Drive(max_running=2, max_rows=max_rows, **choices)
    for serial, (name, most) in enumerate((("long", 6), ("short", 2), ("next", 2))):
        drive.add(name, 1, most, arrival=serial)
    assert started(drive.plan()) == ["long", "short"]
    return drive


def test_the_next_takes_the_seat_at_the_very_next_iteration() -> None:
    drive = in_flight(max_rows=8)
    assert [name for name, *_ in chunks(drive.plan())] == ["long", "short"]  # its last token
    drive.answer()
    assert drive.running == ["long", "short"]  # nobody has heard of that token
    assert [name for name, *_ in chunks(drive.plan())] == ["long", "next"]


def test_two_requests_never_share_a_seat_in_one_iteration() -> None:
    drive = in_flight(max_rows=8)
    plan = drive.plan()
    assert not plan.admitted
    assert drive.passed == [("next", "no_seat")]


def test_a_worker_without_a_spare_row_is_waited_for() -> None:
    drive = in_flight(max_rows=2)
    drive.plan()
    drive.answer()
    assert [name for name, *_ in chunks(drive.plan())] == ["long"]
    drive.answer()
    assert started(drive.plan()) == ["next"]


def test_a_static_batch_stays_closed_until_its_last_has_ended() -> None:
    drive = in_flight(max_rows=8, batching="static")
    for _ in range(5):
        assert not drive.plan().admitted
        drive.answer()
    drive.answer()
    assert started(drive.plan()) == ["next"]


def test_nobody_makes_way_while_a_seat_is_free() -> None:
    drive = in_flight(max_rows=8, policy="priority")
    drive.plan()
    drive.answer()
    drive.add("urgent", 1, 2, arrival=3, priority=-100)
    plan = drive.plan()
    assert drive.preempted == []
    assert started(plan) == ["urgent"]
