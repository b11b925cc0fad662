"""A gateway that shows no life is dead; its requests wait a while for somebody else."""

from dataclasses import replace

import pytest

from common.messages import Ending, GatewayId, Sampling, SubmissionId, Submit
from scheduler.core.request import Request
from scheduler.ledger import Ledger
from scheduler.viewers import FORGET_SECONDS, Viewers

GONE_SECONDS = 2.0 + 10.0
SUBMIT = Submit(SubmissionId("s"), ((1,),), 1, Sampling(seed=0), Ending(8), GatewayId("g"))


@pytest.fixture
def viewers() -> Viewers:
    return Viewers(beat_seconds=2.0, grace_seconds=10.0)


def ledger(*submits: Submit) -> Ledger:
    ledger = Ledger(journal_seconds=60)
    for number, submit in enumerate(submits):
        ledger.open(f"{number}-0", submit, [Request.from_submit(submit, 0, number)])
    return ledger


def abandoned(viewers: Viewers, ledger: Ledger, now: float) -> list[str]:
    return [account.request.id for account in viewers.abandoned(ledger, now)]


def test_requests_of_a_gateway_whose_beat_stands_still_are_abandoned(viewers: Viewers) -> None:
    opened = ledger(SUBMIT, replace(SUBMIT, submission_id=SubmissionId("r"), resumable=True))
    viewers.watch({GatewayId("g"): 1}, 0.0)
    viewers.watch({GatewayId("g"): 1}, GONE_SECONDS)
    assert abandoned(viewers, opened, GONE_SECONDS) == []
    assert abandoned(viewers, opened, GONE_SECONDS + 0.1) == ["s.0"]
    viewers.watch({GatewayId("g"): 2}, GONE_SECONDS + 0.1)
    assert abandoned(viewers, opened, GONE_SECONDS + 0.1) == []


def test_one_live_gateway_is_enough(viewers: Viewers) -> None:
    opened = ledger(SUBMIT)
    opened.submissions[SubmissionId("s")].accounts[0].request.gateways = (
        GatewayId("g"),
        GatewayId("h"),
    )
    viewers.watch({GatewayId("h"): 1}, 0.0)
    assert abandoned(viewers, opened, 0.0) == []  # g was never seen: its grace begins
    viewers.watch({GatewayId("h"): 2}, GONE_SECONDS)
    assert abandoned(viewers, opened, GONE_SECONDS + 1) == []
    assert abandoned(viewers, opened, 2 * GONE_SECONDS + 1) == ["s.0"]


def test_a_gateway_that_left_has_its_grace(viewers: Viewers) -> None:
    opened = ledger(SUBMIT)
    viewers.watch({GatewayId("g"): 1}, 0.0)
    viewers.watch({}, 1.0)
    assert abandoned(viewers, opened, GONE_SECONDS) == []
    assert abandoned(viewers, opened, GONE_SECONDS + 0.1) == ["s.0"]


def test_dead_gateways_are_forgotten(viewers: Viewers) -> None:
    viewers.watch({GatewayId("g"): 1}, 0.0)
    assert viewers.watch({GatewayId("g"): 1}, FORGET_SECONDS) == []
    assert viewers.watch({GatewayId("g"): 1}, FORGET_SECONDS + 1) == ["g"]
    viewers.watch({}, FORGET_SECONDS + GONE_SECONDS + 1)
    assert not viewers._beats
    assert not viewers._since
