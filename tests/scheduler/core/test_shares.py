"""The counters of fairness."""

import pytest

from scheduler.core.shares import Shares


def test_service_is_divided_by_the_weight() -> None:
    shares = Shares(input_weight=1.0, output_weight=2.0, weights={"x": 4.0})
    shares.charge_input("x", 8)
    shares.charge_output("x", 2)
    shares.charge_input("y", 8)
    assert shares.served == {"x": 3.0, "y": 8.0}


def test_a_new_weight_counts_from_now_on() -> None:
    shares = Shares()
    shares.charge_input("x", 8)
    shares.set_weight("x", 8.0)
    shares.charge_input("x", 8)
    assert shares.of("x") == 9.0


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_a_weight_is_positive(weight: float) -> None:
    shares = Shares()
    with pytest.raises(ValueError, match="the weight of x must be positive"):
        shares.set_weight("x", weight)
    assert shares.weights == {}


def test_who_comes_is_lifted_to_the_least_that_waits_and_never_lowered() -> None:
    shares = Shares()
    shares.charge_input("x", 5)
    shares.came("x", 20.0)
    shares.came("y", 20.0)
    assert shares.served == {"x": 20.0, "y": 20.0}
    shares.left("x")
    shares.came("x", 3.0)
    assert shares.of("x") == 20.0


def test_who_comes_where_nobody_waits_is_lifted_to_the_last_that_left() -> None:
    shares = Shares()
    for tenant, service in (("x", 5), ("y", 9)):
        shares.came(tenant, None)
        shares.charge_input(tenant, service)
    shares.left("y")
    shares.left("x")
    shares.came("z", None)
    assert shares.of("z") == 5.0
    shares.came("y", None)
    assert shares.of("y") == 9.0


def test_who_waits_anywhere_is_not_lifted_where_it_comes_next() -> None:
    shares = Shares()
    shares.came("x", None)
    shares.came("x", 20.0)
    shares.left("x")
    shares.came("x", 20.0)
    assert shares.of("x") == 0.0, "it has waited all the time"


def test_the_first_of_all_begins_at_nothing() -> None:
    shares = Shares()
    shares.came("x", None)
    assert shares.of("x") == 0.0


def test_forgotten_tenants_have_had_nothing() -> None:
    shares = Shares()
    shares.charge_input("x", 5)
    shares.forget(["x", "unknown"])
    assert shares.served == {}
    assert shares.of("x") == 0.0


def test_the_weights_given_are_not_those_of_the_caller() -> None:
    weights = {"x": 2.0}
    Shares(weights=weights).set_weight("x", 3.0)
    assert weights == {"x": 2.0}
