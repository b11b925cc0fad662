"""What holds between any two calls into the core. Tests and the simulator call `check`."""

from collections import Counter

from scheduler.core.request import Request, Status
from scheduler.core.scheduler import Scheduler


def check(scheduler: Scheduler) -> None:
    """AssertionError where the counts of the scheduler do not add up."""
    _check_blocks(scheduler)
    _check_members(scheduler)
    for request in scheduler.requests.values():
        _check_request(request)
        assert request.preemptions <= scheduler.limits.max_preemptions
    for row in scheduler.running.rows:
        _check_row(row, scheduler)


def _check_blocks(scheduler: Scheduler) -> None:
    pool = scheduler.pool
    blocks = pool.unowned()
    assert len(blocks) == pool.num_expected, "the pool counts wrongly"
    for row in scheduler.running.rows:
        blocks += row.block_table
    assert Counter(blocks) == Counter(range(pool.num_blocks)), "a block leaked or has two owners"


def _check_members(scheduler: Scheduler) -> None:
    rows, line = scheduler.running.rows, list(scheduler.waiting)
    assert all(row.status is Status.RUNNING for row in rows)
    assert all(request.status is Status.WAITING for request in line)
    assert [row.place for row in rows] == sorted(row.place for row in rows), "rows out of order"
    assert len(rows) <= scheduler.limits.max_running
    assert scheduler.running.num_growing == sum(
        len(row.block_table) < row.max_blocks for row in rows
    )
    assert scheduler.running.num_leaving == sum(
        len(row.block_table) for row in rows if row.is_all_promised
    )
    ids = [request.id for request in (*rows, *line)]
    assert len(ids) == len(set(ids)), "a request stands in two places"
    unfinished = [r.id for r in scheduler.requests.values() if r.status is not Status.FINISHED]
    assert sorted(ids) == sorted(unfinished), "a request is lost"
    ready = [request for request in line if not request.held]
    assert scheduler.waiting.head is (ready[0] if ready else None)


def _check_request(request: Request) -> None:
    assert 0 <= request.num_computed <= request.num_planned
    assert 0 <= request.num_promised <= request.in_flight
    assert len(request.tokens) + request.num_promised <= request.max_length
    assert (request.finish_reason is not None) == (request.status is Status.FINISHED)
    if request.status is not Status.RUNNING:
        assert not request.block_table
        assert request.num_planned == 0


def _check_row(row: Request, scheduler: Scheduler) -> None:
    assert not row.held
    assert row.num_pending >= 1
    assert row.in_flight or row.num_promised == 0
    assert row.num_planned <= len(row.block_table) * scheduler.pool.block_size, "no block for it"
    assert len(row.block_table) <= row.max_blocks
