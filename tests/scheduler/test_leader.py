"""What the leader decides to write, from news that come in any order."""

from dataclasses import replace

import pytest

from common.bus import DropControl, DropSubmit, ExpireJournal, News, Outcome, Write, WriteEnd
from common.messages import (
    Control,
    ControlKind,
    Ending,
    FinishReason,
    GatewayId,
    Journal,
    RequestId,
    Sampling,
    StepResult,
    SubmissionId,
    Submit,
    WorkerHello,
    WorkerId,
)
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.fleet import Fleet
from scheduler.leader import Leader
from scheduler.ledger import Ledger

HELLO = WorkerHello(WorkerId("w"), "m", "cpu", 64, 16, 512, 128, 8)
SUBMIT = Submit(
    SubmissionId("s"),
    prompts=((1, 2, 3),),
    n=2,
    sampling=Sampling(seed=1),
    ending=Ending(max_tokens=100),
    gateway=GatewayId("g"),
)
CANCEL = Control(ControlKind.CANCEL, "s")


def build_core(hello: WorkerHello) -> Scheduler:
    limits = Limits(hello.max_step_tokens, hello.max_rows, 1, hello.max_request_tokens)
    return Scheduler(limits, Memory(hello.num_blocks, hello.block_size))


@pytest.fixture
def leader() -> Leader:
    """With one worker that takes requests."""
    fleet = Fleet(build_core, beat_seconds=2.0, step_seconds=10.0)
    fleet.watch({HELLO.worker_id: HELLO}, now=0.0)
    fleet.open(HELLO.worker_id)
    return Leader(fleet, Ledger(journal_seconds=60), max_queue=100)


def hear(leader: Leader, news: News, now: float = 0.0) -> None:
    leader.receive(news, now)
    leader.joined([Outcome.OK] * len(leader.heads()), now)


def ends(writes: list[Write]) -> list[FinishReason]:
    return [write.end.reason for write in writes if isinstance(write, WriteEnd)]


def dropped(writes: list[Write]) -> list[str]:
    return [write.entry for write in writes if isinstance(write, DropControl)]


def test_a_cancel_that_comes_with_its_submission_cancels_it(leader: Leader) -> None:
    """The client left at once, or a burst of work let both wait in their streams."""
    hear(leader, News(submits=(("1-0", SUBMIT),), controls=(("1-1", CANCEL),)))
    writes = leader.act(0.0)
    assert ends(writes) == [FinishReason.CANCELLED] * 2
    assert dropped(writes) == ["1-1"]


def test_a_cancel_waits_for_a_submission_that_is_read_later(leader: Leader) -> None:
    """One read brings so many submissions; what was asked of later ones is known before them."""
    others = (("1-0", replace(SUBMIT, submission_id=SubmissionId("other"))),)
    hear(leader, News(submits=others, controls=(("1-1", CANCEL),), more_requests=True))
    assert not dropped(leader.act(0.0))
    hear(leader, News(submits=(("2-0", SUBMIT),)))
    writes = leader.act(0.0)
    assert ends(writes) == [FinishReason.CANCELLED] * 2
    assert dropped(writes) == ["1-1"]


def test_what_means_nobody_goes_once_all_submissions_are_read(leader: Leader) -> None:
    hear(leader, News(controls=(("1-1", CANCEL),), more_requests=True))
    assert not leader.act(0.0)
    hear(leader, News())
    assert dropped(leader.act(0.0)) == ["1-1"]


def test_a_copy_is_dropped_whenever_it_comes(leader: Leader) -> None:
    hear(leader, News(submits=(("1-0", SUBMIT), ("2-0", SUBMIT))))
    assert DropSubmit("2-0") in leader.act(0.0)
    hear(leader, News(submits=(("3-0", SUBMIT),)))
    assert DropSubmit("3-0") in leader.act(0.0)
    assert len(leader.ledger.submissions) == 1


def test_a_late_copy_leaves_no_journal_that_lasts(leader: Leader) -> None:
    """One choice's journal had expired when the copy came, the other's had not."""
    leader.receive(News(submits=(("9-0", SUBMIT),)), 0.0)
    assert len(leader.heads()) == 2
    leader.joined([Outcome.OK, Outcome.REFUSED], 0.0)
    writes = leader.act(0.0)
    assert writes == [DropSubmit("9-0"), ExpireJournal(RequestId("s.0"), 60)]


def test_a_submission_of_nothing_does_not_stay(leader: Leader) -> None:
    """No gateway sends one; written by hand, it would be open for ever."""
    hear(leader, News(submits=(("1-0", replace(SUBMIT, n=0)),)))
    assert leader.act(0.0) == [DropSubmit("1-0")]
    assert not leader.ledger.submissions


@pytest.mark.parametrize(
    "news",
    [
        News(garbage=(("results:w", "1-0"),)),
        News(closed=frozenset({WorkerId("w")})),
        News(results={WorkerId("w"): (StepResult(1, (), 0.0),)}),  # a step that nobody planned
        News(results={WorkerId("w"): (StepResult(7, (), 0.0),)}),
    ],
    ids=["garbage", "closed", "unplanned", "gap"],
)
def test_a_log_that_cannot_go_on_costs_the_worker_its_place(leader: Leader, news: News) -> None:
    hear(leader, news)
    [(worker, why)] = leader.fleet.watch({HELLO.worker_id: HELLO}, now=0.0)
    assert worker == "w"
    assert "log" in why


def test_arrivals_are_times_and_no_two_are_equal(leader: Leader) -> None:
    """Whatever the clock says: requests keep the order in which they came."""
    for index, now in enumerate((5.0, 5.0, 5.0, 7.5, 7.5)):
        other = replace(SUBMIT, submission_id=SubmissionId(f"s{index}"))
        hear(leader, News(submits=((f"{index + 1}-0", other),)), now)
    requests = [account.request for account in leader.ledger.accounts.values()]
    arrivals = [request.arrival for request in requests]
    assert arrivals == sorted(set(arrivals))
    assert [round(arrival, 3) for arrival in arrivals] == [5.0] * 6 + [7.5] * 4


def test_a_new_leader_keeps_the_order_of_the_entries(leader: Leader) -> None:
    for index in range(3):
        submit = replace(SUBMIT, submission_id=SubmissionId(f"s{index}"), n=1)
        leader.reopen(f"{index}-0", submit, [()], [Journal(None)], {}, now=9.0)
    arrivals = [account.request.arrival for account in leader.ledger.accounts.values()]
    assert arrivals == sorted(set(arrivals))
    assert all(9.0 <= arrival < 9.001 for arrival in arrivals)
