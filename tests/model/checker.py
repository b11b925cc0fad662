"""A model checker: every state that can be reached, breadth first, so that a trace is short.

A model is a first state, its moves, and what must hold. Two kinds of wrong are found: a state that
breaks an invariant, and a state from which no faultless moves lead to a state that is at rest.
"""

import gc
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


class Move(NamedTuple, Generic[S]):
    name: str
    state: S  # that it leads to
    is_fault: bool = False  # something that need not happen: nobody may rely on it


@dataclass(frozen=True)
class Model(Generic[S]):
    first: S
    moves: Callable[[S], Iterable[Move[S]]]
    wrong: Callable[[S], str | None]  # which invariant this state breaks
    at_rest: Callable[[S], bool]  # all is done, and as it should be


@dataclass(frozen=True)
class Verdict:
    num_states: int
    wrong: str | None = None
    trace: tuple[str, ...] = ()  # names of the moves that lead there
    complete: bool = True  # False: cut at `max_states`, so nothing is said about rest

    def __str__(self) -> str:
        return "\n  ".join([f"{self.wrong or 'right'} ({self.num_states} states)", *self.trace])


class _Explored(Generic[S]):
    """The states in order of discovery, how each was found, and the faultless moves backwards."""

    def __init__(self, first: S) -> None:
        self.states = [first]
        self.number = {first: 0}
        self.found_by: list[tuple[int, str]] = [(0, "")]
        self.before: list[list[int]] = [[]]

    def add(self, source: int, move: Move[S]) -> None:
        target = self.number.setdefault(move.state, len(self.states))
        if target == len(self.states):
            self.states.append(move.state)
            self.found_by.append((source, move.name))
            self.before.append([])
        if not move.is_fault:
            self.before[target].append(source)

    def trace(self, state: int) -> tuple[str, ...]:
        names = []
        while state:
            state, name = self.found_by[state]
            names.append(name)
        return tuple(reversed(names))

    def first_stuck(self, at_rest: Callable[[S], bool]) -> int | None:
        """The earliest state from which rest is out of reach."""
        reaches = [at_rest(state) for state in self.states]
        todo = [number for number, rests in enumerate(reaches) if rests]
        while todo:
            for source in self.before[todo.pop()]:
                if not reaches[source]:
                    reaches[source] = True
                    todo.append(source)
        return reaches.index(False) if False in reaches else None


def explore(model: Model[S], max_states: int = 1_000_000) -> Verdict:
    """Search all of the model, up to the first state that is wrong."""
    gc.disable()  # states form no cycles, and looking for some takes half of the time
    try:
        return _explore(model, max_states)
    finally:
        gc.enable()


def _explore(model: Model[S], max_states: int) -> Verdict:
    explored = _Explored(model.first)
    current = 0
    while current < len(explored.states):
        if wrong := model.wrong(explored.states[current]):
            return Verdict(len(explored.states), wrong, explored.trace(current))
        if len(explored.states) > max_states:
            return Verdict(len(explored.states), complete=False)
        for move in model.moves(explored.states[current]):
            explored.add(current, move)
        current += 1
    if (stuck := explored.first_stuck(model.at_rest)) is not None:
        return Verdict(len(explored.states), "never comes to rest", explored.trace(stuck))
    return Verdict(len(explored.states))
