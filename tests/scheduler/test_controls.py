"""Whoever leads next reads the entries that stay, and must come to the same."""

import itertools

import pytest

from common.bus import DropControl
from common.messages import Control, ControlKind, Ending, GatewayId, Sampling, SubmissionId, Submit
from scheduler.controls import Controls
from scheduler.core.request import Request
from scheduler.ledger import Ledger

HOLD, RELEASE, PRIORITY = ControlKind.HOLD, ControlKind.RELEASE, ControlKind.PRIORITY
ATTACH, DETACH = ControlKind.ATTACH, ControlKind.DETACH
SUBMIT = Submit(
    SubmissionId("s"),
    prompts=((1, 2, 3),),
    n=2,
    sampling=Sampling(seed=1),
    ending=Ending(max_tokens=100),
    gateway=GatewayId("own"),
)
TARGETS = ("s", "s.0", "s.1")
State = list[tuple[bool, int, set[GatewayId]]]


class Life:
    """One leader's view of two choices that no worker has yet."""

    def __init__(self) -> None:
        ledger = Ledger(journal_seconds=60)
        self.requests = [Request.from_submit(SUBMIT, choice, choice) for choice in range(2)]
        ledger.open("1-1", SUBMIT, self.requests)
        self.controls = Controls(ledger, lambda *_: None, lambda _: None)

    def read(self, stream: dict[str, Control]) -> State:
        """All entries; those that need not stay are dropped from the stream."""
        for entry, control in list(stream.items()):
            for write in self.controls.take(entry, control):
                assert isinstance(write, DropControl)
                del stream[write.entry]
        return [(r.held, r.priority, set(r.gateways)) for r in self.requests]


def check(controls: tuple[Control, ...]) -> dict[str, Control]:
    """The same for each leader that takes over. Returns the entries that stay."""
    stream: dict[str, Control] = {}
    life = Life()
    for index, control in enumerate(controls):
        stream[f"{index}-0"] = control
        state = life.read(stream)
        assert Life().read(dict(stream)) == state, controls[: index + 1]
    return stream


@pytest.mark.parametrize("length", [2, 4])
def test_a_new_leader_holds_what_the_old_one_held(length: int) -> None:
    asked = [Control(kind, target) for kind in (HOLD, RELEASE) for target in TARGETS]
    for controls in itertools.product(asked, repeat=length):
        check(controls)


@pytest.mark.parametrize("length", [2, 4])
def test_a_new_leader_shows_it_to_the_same_gateways(length: int) -> None:
    gateways = (GatewayId("own"), GatewayId("other"))
    asked = [
        Control(kind, target, gateway=gateway)
        for kind in (ATTACH, DETACH)
        for target in TARGETS[:2]
        for gateway in gateways
    ]
    for controls in itertools.product(asked, repeat=length):
        check(controls)


def test_the_newest_priority_counts() -> None:
    asked = [
        Control(PRIORITY, target, priority=priority) for target in TARGETS for priority in (1, 2)
    ]
    for controls in itertools.product(asked, repeat=3):
        check(controls)


def test_what_is_undone_leaves_with_what_undoes_it() -> None:
    other = GatewayId("other")
    assert not check((Control(HOLD, "s"), Control(RELEASE, "s")))
    assert not check((Control(ATTACH, "s", gateway=other), Control(DETACH, "s", gateway=other)))
    assert len(check((Control(PRIORITY, "s", priority=1), Control(PRIORITY, "s", priority=2)))) == 1
