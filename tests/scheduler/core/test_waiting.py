"""The line against a sorted list."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from common.messages import Ending, RequestId, Sampling
from scheduler.core.lines import Heap
from scheduler.core.request import Request
from scheduler.core.waiting import WaitingLine


def request(number: int, rank: int = 0, held: bool = False) -> Request:
    made = Request(RequestId(str(number)), [1] * (number % 3 + 1), 1, Sampling(0), Ending(9))
    made.place, made.held = (rank, number), held
    return made


def by_place() -> WaitingLine:
    return WaitingLine(Heap(lambda waiting: waiting.place))


class LineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.line = by_place()
        self.truth: list[Request] = []
        self.gone: list[Request] = []
        self.number = 0

    @rule(rank=st.integers(0, 3), held=st.booleans())
    def add(self, rank: int, held: bool) -> None:
        self.number += 1
        self.truth.append(request(self.number, rank, held))
        self.line.add(self.truth[-1])

    @rule()
    def come_back(self) -> None:
        """At another place, and with more tokens, than when it left."""
        if self.gone:
            back = self.gone.pop(0)
            back.tokens.append(1)
            back.place = (back.place[0] - 1, back.place[1])
            self.truth.append(back)
            self.line.add(back)

    @rule(index=st.integers(0, 100), grow=st.booleans())
    def remove(self, index: int, grow: bool) -> None:
        if self.truth:
            leaver = self.truth.pop(index % len(self.truth))
            if grow:
                leaver.tokens.append(1)
            self.line.remove(leaver)
            self.gone.append(leaver)

    @invariant()
    def agrees(self) -> None:
        in_order = sorted(self.truth, key=lambda waiting: waiting.place)
        ready = [waiting for waiting in in_order if not waiting.held]
        assert list(self.line)[: len(ready)] == ready
        assert sorted(self.line, key=lambda waiting: waiting.place) == in_order
        assert self.line.first(2) == in_order[:2]
        assert len(self.line) == len(in_order)
        assert self.line.head is (ready[0] if ready else None)


TestLine = LineMachine.TestCase
TestLine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_tokens_are_those_of_the_requests_that_may_go() -> None:
    line = by_place()
    first, second, held = request(1), request(2), request(5, held=True)
    for waiting in (first, second, held):
        line.add(waiting)
    assert line.num_tokens == len(first.tokens) + len(second.tokens)
    first.tokens.append(1)
    line.remove(first)
    line.remove(held)
    assert line.num_tokens == len(second.tokens)


def test_those_that_were_preempted_go_first_in_their_rank() -> None:
    line = by_place()
    new, later, earlier = request(1), request(8), request(9)
    for waiting, rank in ((later, 2), (earlier, 1)):
        waiting.is_returning, waiting.rank = True, (rank,)
    for waiting in (new, later, earlier):
        line.add(waiting)
    assert list(line) == [earlier, later, new]
    assert line.head is earlier
    line.remove(earlier)
    line.remove(later)
    assert line.head is new


def test_one_that_is_parked_goes_on_when_its_block_is_there() -> None:
    line = by_place()
    first, second, third = request(1), request(2), request(3)
    for waiting in (first, second, third):
        line.add(waiting)
    line.park(first, b"a")
    line.park(second, b"b")
    assert (line.head, line.num_ready, line.num_held) == (third, 1, 0)
    assert line.first(9) == [first, second, third]
    line.unpark([b"a"])
    assert (line.head, line.has_parked) == (first, True)
    line.unpark([b"unknown"])
    line.unpark([b"b"])
    assert (list(line), line.has_parked) == ([first, second, third], False)


def test_one_that_left_while_parked_is_not_brought_back() -> None:
    line = by_place()
    first, second = request(1), request(2)
    for waiting in (first, second):
        line.add(waiting)
        line.park(waiting, b"a")
    line.remove(first)
    line.remove(second)
    second.held = True
    line.add(second)
    line.unpark([b"a"])
    assert (len(line), line.head, line.num_held) == (1, None, 1)


def test_one_parked_again_for_another_block_waits_for_that_one() -> None:
    line = by_place()
    first = request(1)
    line.add(first)
    line.park(first, b"a")
    line.park(first, b"b")
    line.unpark([b"a"])
    assert line.head is None
    line.unpark([b"b"])
    assert line.head is first


def test_tokens_of_a_swapped_one_are_those_that_it_lacks() -> None:
    line = by_place()
    swapped = request(5)
    swapped.num_saved = 2
    line.add(swapped)
    assert line.num_tokens == len(swapped.tokens) - 2
    swapped.num_saved = 0
    line.remove(swapped)
    assert line.num_tokens == 0


def test_one_that_saved_more_than_is_known_lacks_a_token_still() -> None:
    """Its steps in flight sampled what nobody here has heard of."""
    line = by_place()
    swapped = request(5)
    swapped.num_saved = len(swapped.tokens) + 2
    line.add(swapped)
    assert line.num_tokens == 1


def test_whoever_comes_of_a_drained_tenant_stands_aside_at_its_place() -> None:
    line = by_place()
    line.drain("anonymous")
    first, second = request(1), request(2)
    second.tenant = "y"
    for waiting in (second, first):
        line.add(waiting)
    assert (line.head, line.num_ready, line.num_held) == (second, 1, 1)
    assert line.first(9) == [first, second]
    line.undrain("anonymous")
    assert line.head is first
