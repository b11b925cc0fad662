"""Orders of the line, against lists that are sorted each time."""

from itertools import islice

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common.messages import Ending, RequestId, Sampling
from scheduler.core.lines import FairLine, Heap
from scheduler.core.request import Place, Request
from scheduler.core.shares import Shares


def request(number: int, tenant: str = "x", num_prompt: int = 1) -> Request:
    made = Request(
        RequestId(str(number)), [1] * num_prompt, num_prompt, Sampling(0), Ending(9), tenant=tenant
    )
    made.place = (number,)
    return made


def by_place(made: Request) -> Place:
    return made.place


def test_those_that_left_do_not_pile_up() -> None:
    line = Heap(by_place)
    line.add(request(0))
    for number in range(1, 5_000):
        waiting = request(number)
        line.add(waiting)
        line.remove(waiting)
    assert len(line._heap) < 100


def test_equal_keys_go_in_the_order_of_their_coming() -> None:
    line = Heap(lambda _: (0,))
    requests = [request(number) for number in (3, 1, 2)]
    for made in requests:
        line.add(made)
    assert list(line) == requests


def test_one_that_left_and_came_back_stands_at_its_new_place_once() -> None:
    line = Heap(by_place)
    first, second = request(1), request(2)
    for made in (first, second):
        line.add(made)
    assert line.remove(first)
    assert not line.remove(first)
    first.place = (3,)
    line.add(first)
    assert list(line) == [second, first]
    assert (line.head, len(line)) == (second, 2)


def test_only_the_tenants_that_wait_take_turns() -> None:
    shares = Shares(input_weight=1.0)
    line = FairLine(by_place, shares)
    for number, tenant in enumerate("xxyy"):
        line.add(request(number, tenant, num_prompt=4))
    order = []
    while head := line.head:
        order.append(head.tenant)
        line.remove(head)
        shares.charge_input(head.tenant, head.num_prompt)
    assert order == ["x", "y", "x", "y"]
    assert len(line) == 0


def test_the_line_is_shown_as_tenants_will_take_turns_by_weight() -> None:
    line = FairLine(by_place, Shares(input_weight=1.0, weights={"x": 2.0}))
    for number, tenant in enumerate("xxxxyy"):
        line.add(request(number, tenant, num_prompt=4))
    assert [made.tenant for made in line] == ["x", "y", "x", "x", "y", "x"]


def test_a_removal_of_one_that_is_not_there_is_told() -> None:
    line = FairLine(by_place, Shares())
    line.add(request(1))
    assert not line.remove(request(2))
    assert not line.remove(request(3, tenant="y"))
    assert len(line) == 1


def test_charges_while_a_tenant_waits_move_it_back() -> None:
    """As tokens of the answers of its rows do."""
    shares = Shares()
    line = FairLine(by_place, shares)
    line.add(request(1, "x"))
    line.add(request(2, "y"))
    assert line.head
    assert line.head.tenant == "x"
    shares.charge_output("x", 1)
    assert line.head.tenant == "y"
    shares.charge_output("y", 9)
    assert line.head.tenant == "x"


def test_of_tenants_with_equal_service_the_first_in_line_goes_first() -> None:
    line = FairLine(by_place, Shares())
    early, late = request(1, "x"), request(3, "x")
    other = request(2, "y")
    for made in (early, other, late):
        line.add(made)
    line.remove(early)
    assert line.head is other
    earlier = request(0, "x")
    line.add(earlier)
    assert line.head is earlier
    assert next(iter(line)) is earlier


class FairMachine(RuleBasedStateMachine):
    """The head is of the tenant with the least service, the first of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = Shares(1.0, 2.0, {"z": 2.0})
        self.line = FairLine(by_place, self.shares)
        self.truth: list[Request] = []
        self.number = 0

    @rule(tenant=st.sampled_from("xyz"), num_prompt=st.integers(1, 9))
    def add(self, tenant: str, num_prompt: int) -> None:
        self.number += 1
        least = min((self.shares.of(made.tenant) for made in self.truth), default=None)
        was_idle = tenant not in {made.tenant for made in self.truth}
        before = self.shares.of(tenant)
        made = request(self.number * 7 % 11, tenant, num_prompt)
        made.id = RequestId(str(self.number))
        made.place = (self.number * 7 % 11, self.number)
        assert self.line.least_served == least
        self.shares.came(tenant, self.line.least_served)
        self.truth.append(made)
        self.line.add(made)
        if was_idle and least is not None:
            assert self.shares.of(tenant) == max(before, least)
        elif not was_idle:
            assert self.shares.of(tenant) == before

    @precondition(lambda self: self.truth)
    @rule(index=st.integers(0, 99))
    def remove(self, index: int) -> None:
        left = self.truth.pop(index % len(self.truth))
        assert self.line.remove(left)
        self.shares.left(left.tenant)

    @precondition(lambda self: self.truth)
    @rule()
    def admit(self) -> None:
        head = self.line.head
        assert head
        self.line.remove(head)
        self.shares.left(head.tenant)
        self.truth.remove(head)
        self.shares.charge_input(head.tenant, head.num_prompt)

    @rule(tenant=st.sampled_from("xyz"), count=st.integers(1, 3))
    def answer(self, tenant: str, count: int) -> None:
        self.shares.charge_output(tenant, count)

    @invariant()
    def agrees(self) -> None:
        line, shares = self.line, self.shares
        assert len(line) == len(self.truth)
        assert sorted(map(by_place, line)) == sorted(map(by_place, self.truth))
        if not self.truth:
            assert line.head is None
            return
        least = min(shares.of(made.tenant) for made in self.truth)
        head = line.head
        assert head
        assert shares.of(head.tenant) == least
        assert head.place == min(m.place for m in self.truth if m.tenant == head.tenant)
        assert shares.of(next(iter(line)).tenant) == least
        for tenant in "xyz":
            own = [made for made in line if made.tenant == tenant]
            assert own == sorted(own, key=by_place)


TestFair = FairMachine.TestCase
TestFair.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_walk_over_the_first_few_does_not_walk_over_all() -> None:
    line = Heap(by_place)
    for number in range(2_000):
        line.add(request(number))
    line._entries = Counting(line._entries)
    assert [made.place for made in islice(line, 3)] == [(0,), (1,), (2,)]
    assert line._entries.asked < 10


class Counting(dict[RequestId, tuple[Place, int, Request]]):
    asked = 0

    def get(self, *args: object) -> object:  # type: ignore[override]
        self.asked += 1
        return super().get(*args)  # type: ignore[call-overload]
