"""Every reason to wait is a sentence with the numbers of the case, as a leader would show it."""

from typing import Any

import orjson
import pytest

from cli.queue_table import WHY
from cli.queue_why import explain, find, told_by_journal
from common.bus import SetStatus
from common.messages import ControlKind, Ended, FinishReason, Journal, JournalHead, RequestId
from scheduler.core.decision import Reason
from scheduler.status import Progress, status_writes, summary
from tests.scheduler.pool import Pool


def status_of(pool: Pool) -> dict[str, Any]:
    """As it stands in Redis."""
    leader = pool.leader
    progress = Progress(1, 1, 1, tokens_per_second=0.0, ends_per_second=0.0)
    total = summary(leader.fleet, leader.ledger, leader.quarantine, progress)
    writes = status_writes(leader.fleet, leader.quarantine, leader.totals, total)
    return {w.field: orjson.loads(w.value) for w in writes if isinstance(w, SetStatus)}


def why(pool: Pool, target: str) -> str:
    status = status_of(pool)
    return "\n".join(explain(status, row) for row in find(status, target))


def small(**changes: Any) -> Pool:
    """A pool in which three rows soon lack blocks."""
    pool = Pool("a", **{"num_blocks": 12, "max_running": 4, "prefix_cache": False} | changes)
    for i in range(3):
        pool.submit(f"r{i}", prompt=8, max_tokens=30)
    return pool


def until_preempted(pool: Pool) -> RequestId:
    while not any(entry["preempted"] for entry in pool.timeline):
        pool.turn()
    return RequestId(pool.timeline[-1]["preempted"][0][0])


def test_one_that_runs_says_how_far_it_is() -> None:
    pool = Pool("a", max_step_tokens=12)
    pool.submit("r", prompt=20)
    pool.act()
    assert why(pool, "r.0") == "r.0 runs on a: 0 of 20 prompt tokens are computed."
    pool.turn()
    assert why(pool, "r.0") == "r.0 runs on a: 12 of 20 prompt tokens are computed."
    pool.turn()
    pool.turn()
    assert why(pool, "r") == "r.0 runs on a: 2 tokens of answer, 6 blocks."


def test_what_was_found_in_the_cache_is_told() -> None:
    pool = Pool("a", max_step_tokens=8)
    shared = tuple(range(600, 620))
    pool.submit("first", shared, max_tokens=1)
    pool.run()
    pool.submit("second", (*shared, *range(700, 720)))
    pool.act()
    assert "20 of 40 prompt tokens are computed, 20 of them found in the cache" in why(
        pool, "second"
    )


def test_one_for_which_no_tokens_are_left() -> None:
    pool = Pool("a", max_step_tokens=8)
    pool.submit("first", prompt=30)
    pool.act()
    pool.submit("second", prompt=30)
    pool.turn()
    assert "the step's 8 tokens are used up by others" in why(pool, "second")
    row = find(status_of(pool), "first")[0] | {"reason": "no_tokens"}
    assert "the budget of 8 tokens left it out of the last step" in explain(status_of(pool), row)


def test_one_for_which_no_seat_is_left_and_those_behind_it() -> None:
    pool = Pool("a", max_running=1)
    for i in range(3):
        pool.submit(f"r{i}")
    pool.act()
    assert why(pool, "r1") == "r1.0 waits: all 1 seats of a are taken."
    assert why(pool, "r2") == (
        "r2.0 waits: 1 other before it (first: r1.0, which waits: all 1 seats of a are taken)."
    )


def test_one_that_lacks_blocks_says_how_many() -> None:
    pool = Pool("a", num_blocks=12, max_running=4)
    pool.submit("first", prompt=30, max_tokens=10)
    pool.act()
    pool.submit("big", prompt=30, max_tokens=10)
    pool.submit("small", prompt=4)
    pool.turn()
    # Of 12 blocks the first has 8; the second needs 8, and one is kept for the first to grow.
    assert why(pool, "big") == "big.0 lacks 5 blocks (4 free of 12)."
    assert "1 other before it (first: big.0, which lacks 5 blocks (4 free of 12))" in why(
        pool, "small"
    )


def test_one_that_came_after_the_last_plan() -> None:
    pool = Pool("a")
    pool.submit("first", max_tokens=30)
    pool.act()
    pool.submit("r")
    assert why(pool, "r") == "r.0 waits: it came after the last step was planned."


def test_one_that_is_held_or_drained_says_what_lets_it_go() -> None:
    pool = Pool("a")
    pool.submit("r", tenant="alice")
    pool.control(ControlKind.HOLD, "r")
    pool.act()
    assert why(pool, "r") == "r.0 is held: `./chairlift queue release r.0` lets it go."
    pool.control(ControlKind.RELEASE, "r")
    pool.control(ControlKind.DRAIN, "tenant:alice")
    pool.act()
    assert "the tenant alice is drained" in why(pool, "r")
    assert "./chairlift queue release tenant:alice" in why(pool, "r")


def test_one_that_waits_for_anothers_prefix_names_it() -> None:
    pool = Pool("a", max_step_tokens=30)
    shared = tuple(range(600, 640))
    pool.submit("first", shared)
    pool.submit("second", (*shared, 700))
    pool.act()
    assert why(pool, "second") == (
        "second.0 waits until first.0 has computed the prefix that both share."
    )


def test_one_that_stepped_back_says_how_often() -> None:
    pool = small()
    preempted = until_preempted(pool)
    assert f"{preempted} stepped back once, has to be computed again, and waits" in why(
        pool, preempted
    )
    while preempted not in pool.running("a"):
        pool.turn()
    assert "after it had to step back once" in why(pool, preempted)


def test_one_whose_tokens_are_under_way() -> None:
    pool = Pool("a", depth=2)
    pool.submit("r", max_tokens=30)
    for _ in range(4):
        pool.turn()
    pool.control(ControlKind.HOLD, "r")
    pool.control(ControlKind.RELEASE, "r")
    pool.turn()
    assert why(pool, "r") == "r.0 waits for tokens of its former row that are still under way."


def test_one_whose_blocks_are_in_host_memory() -> None:
    pool = small(num_host_blocks=32, preemption="swap")
    swapped = until_preempted(pool)
    blocks = len(pool.leader.ledger.accounts[swapped].request.host_blocks)
    assert blocks > 1
    assert f"stepped back once, its {blocks} blocks are in host memory, and it waits" in why(
        pool, swapped
    )


def test_rows_that_lack_blocks_admit_nobody() -> None:
    pool = small(depth=2)
    last = pool.submit("last", prompt=4)
    told = set()
    for _ in range(60):
        pool.turn()
        if last in pool.waiting("a"):
            told.add(why(pool, last))
    assert any(
        "rows that run lack blocks" in each and "nobody is admitted" in each for each in told
    )


def test_a_closed_batch_takes_nobody() -> None:
    pool = Pool("a", batching="static", prefix_cache=False)
    pool.submit("first", max_tokens=20)
    pool.turn()
    pool.turn()
    pool.submit("late")
    pool.turn()
    assert why(pool, "late") == (
        "late.0 waits: the batch on a takes nobody until all of it has ended (1 row now)."
    )


def test_without_a_worker_that_takes_it() -> None:
    pool = Pool()
    pool.submit("r")
    assert why(pool, "r") == "r.0 waits: there is no worker."
    pool.join("a")
    pool.control(ControlKind.DRAIN, "worker:a")
    pool.act()
    assert "none of 1 worker takes it (1 draining, the others joining or too small)" in why(
        pool, "r"
    )


def test_a_suspect_and_those_that_wait_for_it() -> None:
    pool = Pool()
    suspect = pool.submit("bad")
    for name in ("a", "b"):
        pool.join(name)
        pool.act()
        pool.bury(name)
    assert why(pool, "bad") == "bad.0 waits to run alone: workers died with it."
    pool.join("c")
    pool.act()
    pool.submit("other")
    pool.act()
    assert pool.running("c") == [suspect]
    assert why(pool, "other") == (
        "other.0 waits while bad.0 runs alone on c: workers died with that one."
    )


def test_a_submission_means_all_its_choices() -> None:
    pool = Pool("a")
    pool.submit("r", n=3)
    pool.act()
    assert [line.split()[0] for line in why(pool, "r").splitlines()] == ["r.0", "r.1", "r.2"]


def test_what_no_status_lists_is_told_by_its_journal() -> None:
    head = JournalHead(RequestId("r.0"), "1-0", 3, "t", "", {})
    end = Ended(RequestId("r.0"), 5, FinishReason.CANCELLED)
    failed = Ended(RequestId("r.0"), 1, FinishReason.ERROR, "the logits are not finite")
    told = [
        told_by_journal("r.0", Journal(head, (), end), is_accepted=True),
        told_by_journal("r.0", Journal(head, (), failed), is_accepted=True),
        told_by_journal("r.0", Journal(head), is_accepted=True),
        told_by_journal("r.0", Journal(None), is_accepted=True),
        told_by_journal("r.0", Journal(None), is_accepted=False),
    ]
    assert told[0] == "r.0 has ended: cancelled, 5 tokens of answer."
    assert told[1] == "r.0 has ended: error (the logits are not finite), 1 token of answer."
    assert "is open" in told[2]
    assert "no scheduler has read it yet" in told[3]
    assert "is unknown" in told[4]


ROW: dict[str, Any] = {
    **{"request": "r.0", "worker": "w", "state": "WAITING", "tenant": "t", "blocker": None},
    **{"preemptions": 0, "position": 2, "missing": 0, "host_blocks": 0},
}


@pytest.mark.parametrize("reason", sorted(set(filter(None, WHY)) - set(Reason)))
def test_reasons_that_no_core_knows_have_sentences(reason: str) -> None:
    assert "waits" in explain({}, ROW | {"reason": reason})


@pytest.mark.parametrize("reason", sorted(set(Reason) - {"recompute", "swap", "displaced"}))
def test_a_status_without_workers_is_explained_too(reason: str) -> None:
    """The worker was lost since its row was written."""
    for state in ("WAITING", "RUNNING", "SWAPPED"):
        row = ROW | {"reason": reason, "state": state, "output": 1, "blocks": 1}
        assert explain({"workers": []}, row).startswith("r.0 ")
