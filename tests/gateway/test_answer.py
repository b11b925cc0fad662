"""Choices in turn: their order is a function of the tokens, whichever comes first."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from common.messages import Ended, FinishReason, SubmissionId
from gateway import answer as answers
from gateway.answer import Answer
from gateway.repair import Found

SUBMISSION = SubmissionId("s")
Shown = list[tuple[int, int | str]]  # (choice, token), and (choice, "end")


def in_turn(lengths: list[int]) -> Shown:
    """What is to come: round by round."""
    return [
        (choice, position if position < length else "end")
        for position in range(max(lengths) + 1)
        for choice, length in enumerate(lengths)
        if position <= length
    ]


@settings(max_examples=60)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=4),
    data=st.data(),
)
async def test_choices_are_given_out_in_turn(lengths: list[tuple[int, int]], data: Any) -> None:
    """Of each: tokens up to where its client stops it, and tokens computed beyond."""
    answer = Answer(SUBMISSION, len(lengths), in_turn=True)
    stops = [stop for stop, _ in lengths]
    moves = [index for index, (stop, more) in enumerate(lengths) for _ in range(stop + more + 1)]
    shown: Shown = []
    come = [0] * len(lengths)
    for index in data.draw(st.permutations(moves)):
        choice, (stop, more) = answer.choices[index], lengths[index]
        if come[index] < stop + more:
            choice.add(come[index], come[index])
        else:
            choice.finish(Ended(choice.request, stop + more, FinishReason.LENGTH))
        come[index] += 1
        if choice.has_news:
            answer.wake(index)
        if data.draw(st.booleans()):
            await take(answer, shown, stops)
    await take(answer, shown, stops)
    assert shown == in_turn(stops)
    assert answer.is_over


async def take(answer: Answer, shown: Shown, stops: list[int]) -> None:
    """All that can be had. A client that has seen enough of a choice stops it."""
    for index, stop in enumerate(stops):
        if stop == 0:
            answer.choices[index].stop()
    while not answer.is_over:
        events = await answer.next(0.0)
        if not events:
            return
        (event,) = events
        shown += [(event.choice, token) for token in event.tokens]
        if event.end is not None:
            shown.append((event.choice, "end"))
        elif event.tokens[-1] + 1 == stops[event.choice]:
            answer.choices[event.choice].stop()


async def test_a_long_answer_that_is_here_is_given_out_in_parts() -> None:
    """In between, others have their turn."""
    answer = Answer(SUBMISSION, 2)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while not answer.is_over:
            turns += 1
            await asyncio.sleep(0)

    for index, choice in enumerate(answer.choices):
        end = Ended(choice.request, 1000, FinishReason.LENGTH)
        choice.fill(0, Found(tuple(range(1000)), end))
        answer.wake(index)
    counting = asyncio.ensure_future(other())
    got: dict[int, list[int]] = {0: [], 1: []}
    while not answer.is_over:
        events = await answer.next(1.0)
        assert sum(len(event.tokens) for event in events) <= answers.MAX_TAKEN
        for event in events:
            got[event.choice] += event.tokens
    await counting
    assert got == {0: list(range(1000)), 1: list(range(1000))}
    assert turns >= 2000 // answers.MAX_TAKEN
