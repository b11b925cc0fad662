"""A request's counts and its legal moves."""

import itertools

import pytest

from common.messages import (
    Ending,
    FinishReason,
    GatewayId,
    Sampling,
    SubmissionId,
    Submit,
    choice_seed,
)
from scheduler.core.request import TRANSITIONS, IllegalTransitionError, Request, Status


def submit(*prompts: tuple[int, ...], n: int = 1, ending: Ending | None = None) -> Submit:
    return Submit(
        SubmissionId("s"),
        prompts,
        n,
        Sampling(seed=41, temperature=0.5),
        ending or Ending(max_tokens=4, end_tokens=(0,)),
        GatewayId("g"),
        tenant="t",
        priority=2,
    )


@pytest.mark.parametrize(("choice", "prompt"), [(0, [1, 2]), (1, [1, 2]), (2, [3]), (3, [3])])
def test_each_choice_has_its_prompt_and_its_seed(choice: int, prompt: list[int]) -> None:
    request = Request.from_submit(submit((1, 2), (3,), n=2), choice, arrival=7)
    assert request.id == f"s.{choice}"
    assert request.tokens == prompt
    assert request.sampling == Sampling(seed=choice_seed(41, choice), temperature=0.5)
    assert (request.tenant, request.priority, request.arrival) == ("t", 2, 7)
    assert request.gateways == ("g",)


def test_a_resumed_answer_is_known_and_not_computed() -> None:
    request = Request.from_submit(submit((1, 2)), 0, arrival=0, answer=(8, 9))
    assert (request.num_prompt, request.num_output, request.num_pending) == (2, 2, 4)
    assert request.max_length == 6
    assert request.row_start().tokens == (1, 2, 8, 9)
    assert request.row_start().num_prompt == 2


def test_promised_tokens_are_pending_until_planned() -> None:
    request = Request.from_submit(submit((1, 2)), 0, arrival=0)
    request.num_planned, request.num_promised = 2, 1
    assert request.num_pending == 1
    assert not request.is_all_promised
    request.num_planned, request.num_promised = 5, 4
    assert request.is_all_promised


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        ((), None),
        ((5,), None),
        ((5, 0), FinishReason.STOP),
        ((5, 5, 5, 5), FinishReason.LENGTH),
        ((5, 5, 5, 0), FinishReason.STOP),
    ],
)
def test_an_answer_is_complete_by_its_last_token_or_its_length(
    answer: tuple[int, ...], end: FinishReason | None
) -> None:
    assert Request.from_submit(submit((1, 0)), 0, 0, answer).own_end is end


@pytest.mark.parametrize(("old", "new"), list(itertools.product(Status, Status)))
def test_moves_are_those_of_the_table(old: Status, new: Status) -> None:
    request = Request.from_submit(submit((1,)), 0, arrival=0)
    request.status = old
    if new in TRANSITIONS[old]:
        request.move_to(new)
        assert request.status is new
    else:
        with pytest.raises(IllegalTransitionError, match=f"s.0: {old.name} -> {new.name}"):
            request.move_to(new)
        assert request.status is old


def test_nothing_leaves_finished() -> None:
    assert TRANSITIONS[Status.FINISHED] == frozenset()
    assert TRANSITIONS.keys() == set(Status)
