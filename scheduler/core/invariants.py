"""What holds between any two calls into the core. Tests and the simulator call `check`."""

from collections import Counter

from scheduler.core.block_pool import BlockPool, Blocks
from scheduler.core.decision import Reason
from scheduler.core.prefix_cache import PrefixCache
from scheduler.core.request import NEVER, Request, Status
from scheduler.core.scheduler import Scheduler


def check(scheduler: Scheduler) -> None:
    """AssertionError where the counts of the scheduler do not add up."""
    _check_blocks(scheduler.pool, scheduler.running.rows)
    _check_host_blocks(scheduler)
    _check_members(scheduler)
    _check_line(scheduler)
    for request in scheduler.requests.values():
        _check_request(request, scheduler)
        assert request.preemptions <= scheduler.running.max_preemptions
    for row in scheduler.running.rows:
        _check_row(row, scheduler)
    if scheduler.cache:
        _check_cache(scheduler.cache, scheduler)


def _check_blocks(pool: Blocks, rows: list[Request]) -> None:
    unowned = pool.unowned()
    assert len(unowned) == pool.num_expected, "the pool counts wrongly"
    owners = Counter(block for row in rows for block in row.block_table)
    assert Counter(unowned) == Counter(
        block for block in range(pool.num_blocks) if block not in owners
    ), "a block leaked, or is free and has an owner"
    if isinstance(pool, BlockPool):
        assert all(pool.owners(block) == count for block, count in owners.items())
    else:
        assert set(owners.values()) <= {1}, "a block has two owners"
        for row in rows:
            first = row.block_table[0]
            assert row.block_table == list(range(first, first + len(row.block_table)))


def _check_host_blocks(scheduler: Scheduler) -> None:
    host = scheduler.host
    saved = [block for request in scheduler.requests.values() for block in request.host_blocks]
    assert len(saved) == len(set(saved)), "a host block has two owners"
    assert len(saved) + host.num_free == host.num_blocks, "a host block leaked"


def _check_members(scheduler: Scheduler) -> None:
    rows, line = scheduler.running.rows, list(scheduler.waiting)
    assert all(row.status is Status.RUNNING for row in rows)
    assert all(request.status in (Status.WAITING, Status.SWAPPED) for request in line)
    assert [row.rank for row in rows] == sorted(row.rank for row in rows), "rows out of order"
    limits, num_ending = scheduler.limits, sum(row.is_all_promised for row in rows)
    assert scheduler.running.num_ending == num_ending
    assert len(rows) <= (limits.max_rows or limits.max_running)
    for plan, _ in scheduler._in_flight:
        assert len(plan.chunks) <= limits.max_running
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


def _check_line(scheduler: Scheduler) -> None:
    waiting = scheduler.waiting
    line = list(waiting)
    assert len(line) == len(waiting)
    ready = [request for request in line if not waiting.aside(request)]
    assert len(ready) == waiting.num_ready
    assert waiting.head is (ready[0] if ready else None)
    assert all(request.held == (waiting.aside(request) is Reason.HELD) for request in line)
    for request in line:
        if waiting.aside(request) is Reason.PREFIX:
            content = waiting.awaited(request)
            assert any(
                content in row.hashes[row.num_published :] for row in scheduler.running.rows
            ), "it stands aside for nobody"


def _check_request(request: Request, scheduler: Scheduler) -> None:
    assert 0 <= request.num_computed <= request.num_planned
    in_flight = sum(request in step.requests for _, step in scheduler._in_flight)
    assert request.num_promised + request.num_filling == in_flight, "steps that name it"
    assert min(request.num_promised, request.num_filling) >= 0
    assert len(request.tokens) + request.num_promised <= request.max_length
    assert (request.finish_reason is not None) == (request.status is Status.FINISHED)
    assert bool(request.host_blocks) == (request.status is Status.SWAPPED)
    assert bool(request.num_saved) == (request.status is Status.SWAPPED)
    assert (request.row_since < NEVER) == (request.status is Status.RUNNING)
    if request.status is not Status.RUNNING:
        assert not request.block_table
        assert request.num_planned == 0


def _check_row(row: Request, scheduler: Scheduler) -> None:
    assert not row.held
    assert row.num_pending >= 1
    assert row.num_planned <= len(row.block_table) * scheduler.pool.block_size, "no block for it"
    assert len(row.block_table) <= row.max_blocks
    if row.easy_tokens:
        room = len(row.block_table) * scheduler.pool.block_size
        assert row.num_pending == 1
        assert row.num_planned + row.easy_tokens <= min(room, row.max_length - 2), "not so easy"
    assert len(row.block_table) == len(set(row.block_table))


def _check_cache(cache: PrefixCache, scheduler: Scheduler) -> None:
    index = cache.index
    contents = {content: block for block, content in enumerate(index.contents) if content}
    assert contents == index.blocks, "the index says one thing forwards, another one backwards"
    for request in cache.computing.values():
        assert request.status is Status.RUNNING, "who computes it has left"
    for row in scheduler.running.rows:
        assert row.num_published <= len(row.block_table)
    pool = scheduler.pool
    blank = set(pool.unowned()[: pool.num_free - pool.num_idle_cached])
    assert not blank & index.known, "a blank block is said to hold something"
