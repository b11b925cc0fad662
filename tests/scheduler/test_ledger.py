"""The order in which an answer and its end are written, wherever a crash may cut it."""

from dataclasses import replace

import pytest

from common.bus import (
    DropOwner,
    DropSubmit,
    DropSuspect,
    ExpireJournal,
    WriteEnd,
    WriteTokens,
)
from common.messages import Ending, FinishReason, GatewayId, Sampling, SubmissionId, Submit
from scheduler.core.request import Request, Status
from scheduler.ledger import FLUSH_SECONDS, FLUSH_TOKENS, Account, Ledger

SUBMIT = Submit(
    SubmissionId("s"),
    prompts=((1, 2, 3),),
    n=2,
    sampling=Sampling(seed=1),
    ending=Ending(max_tokens=100),
    gateway=GatewayId("g"),
)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(journal_seconds=60)


@pytest.fixture
def accounts(ledger: Ledger) -> list[Account]:
    requests = [Request.from_submit(SUBMIT, choice, choice) for choice in range(2)]
    return ledger.open("1-1", SUBMIT, requests).accounts


def gain(account: Account, count: int) -> None:
    account.request.tokens += range(100, 100 + count)


def finish(account: Account, reason: FinishReason = FinishReason.LENGTH) -> None:
    account.request.move_to(Status.FINISHED)
    account.request.finish_reason = reason
    account.request.kept = account.request.num_output


def test_a_journal_is_written_when_enough_tokens_have_gathered(
    ledger: Ledger, accounts: list[Account]
) -> None:
    account = accounts[0]
    gain(account, FLUSH_TOKENS - 1)
    assert not ledger.advanced(account, 1, now=0.0)
    gain(account, 1)
    [write] = ledger.advanced(account, 2, now=0.0)
    assert isinstance(write, WriteTokens)
    assert (write.total, len(write.tokens)) == (FLUSH_TOKENS, FLUSH_TOKENS)
    assert ledger.first_unjournaled(account.worker) is None  # type: ignore[arg-type]


def test_journals_of_requests_that_began_together_are_written_apart(ledger: Ledger) -> None:
    submit = replace(SUBMIT, n=FLUSH_TOKENS)
    requests = [Request.from_submit(submit, choice, choice) for choice in range(submit.n)]
    accounts = ledger.open("1-1", submit, requests).accounts
    num_writes = []
    for step in range(1, 4 * FLUSH_TOKENS + 1):
        num_writes.append(0)
        for account in accounts:
            gain(account, 1)
            num_writes[-1] += len(ledger.advanced(account, step, now=0.0))
            assert account.request.num_output - account.journaled < FLUSH_TOKENS
    assert set(num_writes) == {1}


def test_a_journal_is_never_long_behind(ledger: Ledger, accounts: list[Account]) -> None:
    for account in accounts:
        gain(account, 1)
        ledger.advanced(account, 7, now=1.0)
    assert not ledger.flush_due(now=1.0 + FLUSH_SECONDS / 2)
    writes = ledger.flush_due(now=1.0 + FLUSH_SECONDS)
    assert [type(write) for write in writes] == [WriteTokens, WriteTokens]
    assert not ledger.flush_due(now=100.0)


def test_the_last_token_is_journaled_with_the_end_only(
    ledger: Ledger, accounts: list[Account]
) -> None:
    """The log, with the mark by which the row ended, is not trimmed before."""
    account = accounts[0]
    account.worker = "w"  # type: ignore[assignment]
    gain(account, 1)
    finish(account)
    assert not ledger.advanced(account, 9, now=0.0)
    assert not ledger.flush_due(now=100.0)
    assert ledger.first_unjournaled("w") == 9  # type: ignore[arg-type]
    assert [type(write) for write in ledger.end(account)][:2] == [WriteTokens, WriteEnd]
    assert ledger.first_unjournaled("w") is None  # type: ignore[arg-type]


def test_an_end_is_written_in_the_order_of_the_story(
    ledger: Ledger, accounts: list[Account]
) -> None:
    first, last = accounts
    gain(first, 2)
    finish(first)
    assert [type(write) for write in ledger.end(first)] == [
        WriteTokens,
        WriteEnd,
        DropOwner,
        DropSuspect,
    ]
    assert ledger.accounts  # the submission is open until its last choice has ended
    finish(last, FinishReason.CANCELLED)
    writes = ledger.end(last)
    assert [type(write) for write in writes] == [
        WriteEnd,
        DropOwner,
        DropSuspect,
        DropSubmit,
        ExpireJournal,
        ExpireJournal,
    ]
    assert not ledger.accounts
    assert not ledger.submissions


def test_targets_are_a_submissions_choices_or_one_request(
    ledger: Ledger, accounts: list[Account]
) -> None:
    assert ledger.targets("s", "9-0") == accounts
    assert ledger.targets("s.1", "9-0") == accounts[1:]
    assert ledger.targets("nobody", "9-0") == []
    finish(accounts[0])
    ledger.end(accounts[0])
    assert ledger.targets("s", "9-0") == accounts[1:]
    assert ledger.targets("s.0", "9-0") == []


def test_an_end_is_written_once(ledger: Ledger, accounts: list[Account]) -> None:
    finish(accounts[0])
    ledger.end(accounts[0])
    with pytest.raises(AssertionError):
        ledger.end(accounts[0])
