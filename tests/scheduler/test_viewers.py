"""A gateway that shows no life is dead; its requests wait a while for somebody else."""

from dataclasses import replace

import pytest

from common.messages import Ending, GatewayId, RequestId, Sampling, SubmissionId, Submit
from scheduler.core.request import Request
from scheduler.ledger import Ledger
from scheduler.viewers import FORGET_SECONDS, Viewers

BEAT_SECONDS, GRACE_SECONDS, RESUME_SECONDS = 2.0, 10.0, 30.0
SUBMIT = Submit(SubmissionId("s"), ((1,),), 1, Sampling(seed=0), Ending(8), GatewayId("g"))


@pytest.fixture
def viewers() -> Viewers:
    return Viewers(BEAT_SECONDS, GRACE_SECONDS, RESUME_SECONDS)


def ledger(*submits: Submit) -> Ledger:
    ledger = Ledger(journal_seconds=60)
    for number, submit in enumerate(submits):
        ledger.open(f"{number}-0", submit, [Request.from_submit(submit, 0, number)])
    return ledger


def abandoned(viewers: Viewers, ledger: Ledger, now: float) -> list[str]:
    return [account.request.id for account in viewers.abandoned(ledger, now)]


RESUMABLE = replace(SUBMIT, submission_id=SubmissionId("r"), resumable=True)
DEAD_AT = BEAT_SECONDS + 0.1  # when it is seen that a gateway, last heard of at 0, is dead


def show(ledger: Ledger, name: str, *gateways: str) -> None:
    """Whom controls let show the request."""
    account = ledger.accounts[RequestId(name)]
    account.request.gateways = tuple(map(GatewayId, gateways))


def first_abandoned(viewers: Viewers, ledger: Ledger, begin: float) -> dict[str, float]:
    """When each request is given up, looked at every half second."""
    found: dict[str, float] = {}
    for tick in range(400):
        for request in abandoned(viewers, ledger, begin + tick / 2):
            found.setdefault(request, begin + tick / 2)
    return found


def test_requests_of_a_gateway_whose_beat_stands_still_are_abandoned(viewers: Viewers) -> None:
    opened = ledger(SUBMIT, RESUMABLE)
    viewers.watch({GatewayId("g"): 1}, 0.0)
    assert abandoned(viewers, opened, 0.0) == []
    assert first_abandoned(viewers, opened, DEAD_AT) == {
        "s.0": DEAD_AT + GRACE_SECONDS,
        "r.0": DEAD_AT + RESUME_SECONDS,
    }
    viewers.watch({GatewayId("g"): 2}, 300.0)  # it was only slow
    assert abandoned(viewers, opened, 300.0) == []


def test_one_live_gateway_is_enough(viewers: Viewers) -> None:
    opened = ledger(SUBMIT)
    show(opened, "s.0", "g", "h")
    viewers.watch({GatewayId("h"): 1}, 0.0)
    assert abandoned(viewers, opened, 0.0) == []  # g was never seen: its grace begins
    viewers.watch({GatewayId("h"): 2}, 20.0)
    assert first_abandoned(viewers, opened, 20.0) == {"s.0": 20.0 + 2.5 + GRACE_SECONDS}


def test_a_gateway_that_left_has_its_grace(viewers: Viewers) -> None:
    opened = ledger(SUBMIT)
    viewers.watch({GatewayId("g"): 1}, 0.0)
    viewers.watch({}, 1.0)
    assert first_abandoned(viewers, opened, DEAD_AT) == {"s.0": DEAD_AT + GRACE_SECONDS}


def test_a_client_that_left_is_waited_for_only_if_it_said_so(viewers: Viewers) -> None:
    opened = ledger(SUBMIT, RESUMABLE)
    for name in ("s.0", "r.0"):
        show(opened, name)
    assert first_abandoned(viewers, opened, 5.0) == {"s.0": 5.0, "r.0": 5.0 + RESUME_SECONDS}


def test_whoever_comes_back_begins_the_time_anew(viewers: Viewers) -> None:
    """Also where a gateway that died long ago is still among those that showed it."""
    opened = ledger(RESUMABLE)
    viewers.watch({GatewayId("g"): 1}, 0.0)
    assert abandoned(viewers, opened, 20.0) == []
    show(opened, "r.0", "g", "h")
    viewers.watch({GatewayId("h"): 1}, 30.0)
    assert abandoned(viewers, opened, 30.0) == []
    show(opened, "r.0", "g")  # its client leaves again
    assert first_abandoned(viewers, opened, 31.0) == {"r.0": 31.0 + RESUME_SECONDS}


def test_dead_gateways_are_forgotten(viewers: Viewers) -> None:
    viewers.watch({GatewayId("g"): 1}, 0.0)
    assert viewers.watch({GatewayId("g"): 1}, FORGET_SECONDS) == []
    assert viewers.watch({GatewayId("g"): 1}, FORGET_SECONDS + 1) == ["g"]
    viewers.watch({}, FORGET_SECONDS + BEAT_SECONDS + RESUME_SECONDS + 1)
    assert not viewers._beats
    assert not viewers._since


def test_what_has_ended_is_forgotten(viewers: Viewers) -> None:
    opened = ledger(RESUMABLE)
    show(opened, "r.0")
    abandoned(viewers, opened, 1.0)
    opened.accounts[RequestId("r.0")].is_done = True
    assert first_abandoned(viewers, opened, 2.0) == {}
    assert not viewers._alone_since
