"""What a leader writes of its counters is what the next one begins with, and stays small."""

from common.bus import DropShare, SetShare, Share, Write
from scheduler.core.shares import Shares
from scheduler.fairness import Counters


def applied(stored: dict[str, Share], writes: list[Write]) -> dict[str, Share]:
    for write in writes:
        match write:
            case SetShare(tenant, share):
                stored[tenant] = share
            case DropShare(tenant):
                del stored[tenant]
    return stored


def test_only_what_changed_is_written() -> None:
    shares = Shares(weights={"alice": 2.0})
    counters = Counters(shares)
    assert counters.writes(set()) == []
    shares.charge_input("alice", 100)
    shares.charge_input("bob", 10)
    active = {"alice", "bob"}
    assert counters.writes(active) == [
        SetShare("alice", Share(50.0, 2.0)),
        SetShare("bob", Share(10.0, 1.0)),
    ]
    assert counters.writes(active) == []
    shares.charge_output("bob", 1)
    assert counters.writes(active) == [SetShare("bob", Share(12.0, 1.0))]
    shares.set_weight("bob", 3.0)
    assert counters.writes(active) == [SetShare("bob", Share(12.0, 3.0))]


def test_a_new_leader_goes_on_from_there() -> None:
    old, stored = Shares(), dict[str, Share]()
    old.charge_input("alice", 70)
    old.charge_output("bob", 7)
    applied(stored, Counters(old).writes({"alice", "bob"}))
    new = Shares(weights={"bob": 5.0})
    counters = Counters(new)
    counters.restore(stored)
    assert new.served == old.served
    assert new.weights == {"bob": 5.0}  # of settings and `control`, not of what was shown
    assert counters.writes({"alice", "bob"}) == [SetShare("bob", Share(14.0, 5.0))]


def test_tenants_that_have_nothing_to_claim_are_forgotten() -> None:
    shares, stored = Shares(), dict[str, Share]()
    counters = Counters(shares)
    for i in range(10):
        shares.charge_input(f"t{i}", 10 * i)
    applied(stored, counters.writes({"t5"}))
    assert set(stored) == {f"t{i}" for i in range(5, 10)} == set(shares.served)
    applied(stored, counters.writes(set()))  # nobody is here to compare with
    assert len(stored) == 5
    shares.charge_input("t5", 1000)
    applied(stored, counters.writes({"t5"}))
    assert set(stored) == {"t5"}


def test_counters_do_not_pile_up() -> None:
    """A thousand tenants that came once."""
    shares, stored = Shares(), dict[str, Share]()
    counters = Counters(shares)
    shares.charge_input("steady", 1)
    for i in range(1000):
        tenant = f"t{i}"
        shares.came(tenant, shares.of("steady"))
        shares.charge_input(tenant, 10)
        shares.charge_input("steady", 10)
        applied(stored, counters.writes({"steady", tenant}))
        assert len(stored) <= 3
