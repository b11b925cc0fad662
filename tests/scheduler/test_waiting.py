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


def test_those_that_left_do_not_pile_up() -> None:
    line = Heap(lambda waiting: waiting.place)
    line.add(request(0))
    for number in range(1, 5_000):
        waiting = request(number)
        line.add(waiting)
        line.remove(waiting)
    assert len(line._heap) < 100
