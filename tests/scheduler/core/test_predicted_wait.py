"""`predicted_wait` against what happens: within a factor of two, once some answers have ended."""

import pytest

from scheduler.core.request import Request, Status
from scheduler.core.scheduler import Scheduler
from tests.scheduler.core.loads import Loop, core, request

ANSWER = 24


def busy(*, max_running: int, num_blocks: int = 400, max_tokens: int = ANSWER) -> Loop:
    """Rows in all stages of their answers; as many have ended as teach how long answers are."""
    scheduler = core(
        num_blocks=num_blocks,
        max_running=max_running,
        max_step_tokens=64,
        policy="fcfs",
        prefix_cache=False,
    )
    loop = Loop(scheduler, length=lambda _: max_tokens)
    number = 0
    while len(loop.ended) < 80:
        if len(scheduler.requests) < max_running + (number % 2):
            scheduler.add(request(number, 8, max_tokens))
            number += 1
        loop.turn()
        loop.turn()
    return loop


def wait_of(loop: Loop, made: Request) -> tuple[float, float]:
    """Foreseen, and found."""
    foreseen, start = loop.core.predicted_wait(), loop.seconds
    loop.core.add(made)
    while made.status is Status.WAITING:
        loop.turn()
    return foreseen, loop.seconds - start


def line_up(scheduler: Scheduler, count: int, num_prompt: int, max_tokens: int = ANSWER) -> None:
    for number in range(count):
        scheduler.add(request(10_000 + number, num_prompt, max_tokens))


def test_nobody_waits_where_nobody_is() -> None:
    assert core().predicted_wait() == 0.0
    loop = busy(max_running=4)
    while loop.turn():
        pass
    assert loop.core.predicted_wait() == 0.0


@pytest.mark.parametrize("count", [4, 10, 30])
def test_prompts_ahead_have_to_be_computed(count: int) -> None:
    loop = busy(max_running=64)
    line_up(loop.core, count, num_prompt=60)
    foreseen, found = wait_of(loop, request(20_000, 8, 2))
    assert found / 2 <= foreseen <= found * 2


@pytest.mark.parametrize("count", [3, 8, 30])
def test_where_all_seats_are_taken_answers_have_to_end(count: int) -> None:
    loop = busy(max_running=6)
    line_up(loop.core, count, num_prompt=8)
    loop.turn()
    loop.turn()
    foreseen, found = wait_of(loop, request(20_000, 8, 2))
    assert found / 2 <= foreseen <= found * 2
