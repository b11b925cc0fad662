"""Deadlines come in order, and those of requests that ended are not kept."""

from common.messages import Ending, GatewayId, Sampling, SubmissionId, Submit
from scheduler.core.request import Request
from scheduler.deadlines import Deadlines
from scheduler.ledger import Account, Submission


def account(number: int) -> Account:
    submit = Submit(
        SubmissionId(f"s{number}"), ((1,),), 1, Sampling(seed=0), Ending(8), GatewayId("g")
    )
    return Account(Request.from_submit(submit, 0, number), Submission(f"{number}-0", submit))


def test_each_is_due_once_and_in_order() -> None:
    deadlines, accounts = Deadlines(), [account(number) for number in range(3)]
    for when, each in zip((3.0, 1.0, 1.0), accounts, strict=True):
        deadlines.add(when, each)
    assert deadlines.take_due(0.9) == []
    assert deadlines.take_due(1.0) == accounts[1:]
    assert deadlines.take_due(2.0) == []
    assert deadlines.take_due(9.0) == accounts[:1]


def test_what_has_ended_is_never_due() -> None:
    deadlines, ended = Deadlines(), account(0)
    deadlines.add(1.0, ended)
    ended.is_done = True
    assert deadlines.take_due(2.0) == []


def test_memory_follows_what_is_open() -> None:
    deadlines, still_open = Deadlines(), account(0)
    deadlines.add(1e9, still_open)
    for number in range(1, 10_000):
        ended = account(number)
        deadlines.add(1e6 + number, ended)
        ended.is_done = True
    assert len(deadlines) < 200
    assert deadlines.take_due(2e9) == [still_open]
