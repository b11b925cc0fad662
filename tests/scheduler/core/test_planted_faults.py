"""Each of the invariants finds the fault that it is there for, planted in a healthy core."""

import re
from collections.abc import Callable

import pytest

from common.messages import BlockId, FinishReason, RequestId
from scheduler.core.invariants import check
from scheduler.core.request import Request, Status
from scheduler.core.scheduler import Scheduler
from tests.scheduler.core.driving import Drive, request


def paged() -> Scheduler:
    """Two rows, the second still in its prompt; one swapped, one held, one parked, one in line."""
    drive = Drive(
        num_blocks=16,
        block_size=2,
        max_running=2,
        max_step_tokens=6,
        depth=0,
        prefix_cache=True,
        preemption="swap",
        num_host_blocks=4,
        aging_seconds=1000.0,
    )
    swapped = request("swapped", 0, 9, tokens=(60, 61, 62))
    swapped.priority = 1
    drive.scheduler.add(swapped)
    drive.scheduler.add(request("row", 0, 9, arrival=1, tokens=(70, 71)))
    drive.step()
    for name, arrival in (("prompt", 2), ("parked", 3)):
        drive.scheduler.add(request(name, 0, 9, arrival, tokens=tuple(range(80, 90))))
    while "prompt" not in drive.running:
        drive.step()
    drive.scheduler.add(request("held", 0, 9, 4, tokens=(50, 51)))
    drive.scheduler.hold(RequestId("held.0"))
    drive.scheduler.add(request("waits", 0, 9, 5, tokens=(40, 41)))
    parked = drive.scheduler.requests[RequestId("parked.0")]
    assert drive.scheduler.cache
    hit = drive.scheduler.cache.match(parked)
    content = drive.scheduler.cache.worth_waiting(parked, len(hit))
    assert content
    drive.scheduler.waiting.park(parked, content)
    check(drive.scheduler)
    assert drive.running == ["row", "prompt"]
    assert swapped.status is Status.SWAPPED
    return drive.scheduler


def reserved() -> Scheduler:
    drive = Drive(kv="reserved", num_blocks=16)
    for name in "ab":
        drive.add(name, 4, max_tokens=5)
    drive.step()
    return drive.scheduler


def row(core: Scheduler, index: int = 0) -> Request:
    return core.running.rows[index]


def named(core: Scheduler, name: str) -> Request:
    return core.requests[RequestId(f"{name}.0")]


Plant = Callable[[Scheduler], object]


def setting(pick: Callable[[Scheduler], object], field: str, value: object) -> Plant:
    return lambda core: setattr(pick(core), field, value)


def adding(pick: Callable[[Scheduler], object], field: str, count: int) -> Plant:
    def plant(core: Scheduler) -> None:
        owner = pick(core)
        setattr(owner, field, getattr(owner, field) + count)

    return plant


def double_row(core: Scheduler) -> None:
    core.waiting.add(row(core))
    row(core).status = Status.RUNNING


def other_owner(core: Scheduler) -> None:
    row(core).block_table.append(BlockId(row(core, 1).block_table[-1]))
    row(core).max_blocks = 99


def say_blank_is_known(core: Scheduler) -> None:
    assert core.cache
    core.cache.index.publish([BlockId(core.pool.unowned()[0])], [b"content"])


def stand_for_nobody(core: Scheduler) -> None:
    assert core.cache
    for one in core.running.rows:
        one.num_published = len(one.hashes)


def computed_by_a_leaver(core: Scheduler) -> None:
    assert core.cache
    core.cache.computing[b"content"] = named(core, "waits")


def head_out_of_order(core: Scheduler) -> None:
    core.waiting.returning.add(named(core, "waits"))


ONE_SEAT = Drive(max_running=1).scheduler.limits
FAULTS: list[tuple[str, Plant, str]] = [
    # blocks
    (
        "a count of the pool",
        lambda c: c.pool._coming.update({BlockId(99): 9}),
        "counts wrongly|leak",
    ),
    ("a lost block", lambda c: row(c).block_table.pop(), "leaked"),
    ("a block free and owned", lambda c: c.pool._blank.append(row(c).block_table[0]), "leaked"),
    ("two owners of one", other_owner, "pool.owners"),
    ("owners miscounted", lambda c: c.pool._owners.__setitem__(row(c).block_table[0], 2), "owners"),
    # host blocks
    ("a host block lost", lambda c: c.host._free.pop(), "host block leaked"),
    (
        "a host block twice",
        lambda c: named(c, "swapped").host_blocks.extend(named(c, "swapped").host_blocks),
        "host block has two owners",
    ),
    # members
    ("a row that does not run", setting(row, "status", Status.WAITING), "Status.RUNNING for row"),
    (
        "one in line that runs",
        setting(lambda c: named(c, "waits"), "status", Status.RUNNING),
        "Status.WAITING, Status.SWAPPED",
    ),
    ("rows out of order", lambda c: c.running.rows.reverse(), "rows out of order"),
    ("too many rows", setting(lambda c: c, "limits", ONE_SEAT), "max_running"),
    ("ending rows", adding(lambda c: c.running, "num_ending", 1), "num_ending"),
    ("growing rows", adding(lambda c: c.running, "num_growing", 1), "num_growing"),
    ("leaving blocks", adding(lambda c: c.running, "num_leaving", 1), "num_leaving"),
    ("a request nobody knows", lambda c: c.requests.pop(RequestId("waits.0")), "a request is lost"),
    ("a row in line as well", double_row, "Status.WAITING, Status.SWAPPED|two places"),
    # the line
    ("ready ones", lambda c: c.waiting._tokens.update({RequestId("x.0"): 1}), "len\\(line\\)"),
    ("a head that is not first", head_out_of_order, "two places|waiting.head|len\\(line\\)"),
    ("held without standing aside", setting(lambda c: named(c, "waits"), "held", True), "HELD"),
    ("aside without being held", setting(lambda c: named(c, "held"), "held", False), "HELD"),
    ("aside for nobody", stand_for_nobody, "stands aside for nobody"),
    # requests
    ("computed beyond planned", setting(row, "num_computed", 99), "num_computed <="),
    ("promised and not in flight", setting(row, "num_promised", 1), "steps that name it"),
    ("longer than allowed", setting(lambda c: named(c, "waits"), "max_length", 1), "max_length"),
    ("an end without ending", setting(row, "finish_reason", FinishReason.STOP), "finish_reason"),
    (
        "host blocks without being swapped",
        lambda c: (
            setattr(named(c, "waits"), "host_blocks", named(c, "swapped").host_blocks),
            setattr(named(c, "swapped"), "host_blocks", []),
        ),
        "bool\\(request.host_blocks\\)",
    ),
    ("swapped with nothing saved", setting(lambda c: named(c, "swapped"), "num_saved", 0), "saved"),
    (
        "blocks of one that waits",
        lambda c: (
            named(c, "waits").block_table.append(BlockId(0)),
            setattr(named(c, "waits"), "num_planned", 0),
        ),
        "not request.block_table",
    ),
    (
        "plans of one that waits",
        setting(lambda c: named(c, "waits"), "num_planned", 1),
        "num_planned",
    ),
    ("too many preemptions", setting(row, "preemptions", 99), "preemptions"),
    # rows
    ("a held row", setting(row, "held", True), "not row.held"),
    (
        "nothing pending",
        lambda c: setattr(row(c), "num_planned", len(row(c).tokens)),
        "num_pending",
    ),
    (
        "planned without blocks",
        lambda c: (
            row(c).tokens.extend([1] * 9)
            or setattr(row(c), "max_length", 99)
            or setattr(row(c), "num_planned", 9)
        ),
        "no block for it",
    ),
    ("more blocks than ever", setting(row, "max_blocks", 0), "max_blocks|num_growing"),
    # the cache
    ("published and not there", setting(row, "num_published", 9), "num_published"),
    ("a blank block with content", say_blank_is_known, "blank block"),
    ("computed by one that left", computed_by_a_leaver, "who computes it has left"),
    ("an index of one way", lambda c: c.cache.index.blocks.clear(), "backwards"),
]


@pytest.mark.parametrize(
    ("plant", "found"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
def test_a_planted_fault_is_found(plant: Plant, found: str) -> None:
    core = paged()
    plant(core)
    with pytest.raises(AssertionError) as caught:
        check(core)
    statement = str(caught.traceback[-1].statement)
    assert re.search(found, statement + str(caught.value)), statement


RANGE_FAULTS: list[tuple[str, Plant, str]] = [
    ("a range in pieces", lambda c: row(c).block_table.reverse(), "range\\(first"),
    ("a range miscounted", adding(lambda c: c.pool, "_num_free", 1), "counts wrongly"),
    (
        "a range with two owners",
        lambda c: setattr(row(c), "block_table", row(c, 1).block_table),
        "leaked",
    ),
]


@pytest.mark.parametrize(
    ("plant", "found"), [f[1:] for f in RANGE_FAULTS], ids=[f[0] for f in RANGE_FAULTS]
)
def test_a_fault_among_ranges_is_found(plant: Plant, found: str) -> None:
    core = reserved()
    check(core)
    plant(core)
    with pytest.raises(AssertionError) as caught:
        check(core)
    assert re.search(found, str(caught.traceback[-1].statement) + str(caught.value))
