"""What is checked when a schedule is over: what a client was told, and how its request ended."""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from common.messages import Ended, FinishReason, RequestId, Submit
from gateway.head import Head
from tests.common.examples import submit
from tests.system import promises
from tests.system.fault_clients import Client
from tests.system.faulty_server import FaultyServer
from tests.system.truthful import full_answer, token_bytes

NUM_TOKENS = 6  # that were computed when it ended


@pytest.mark.parametrize("reason", [FinishReason.DEADLINE, FinishReason.CANCELLED])
def test_a_stop_string_wins_over_an_end_that_came_before_the_stop(reason: FinishReason) -> None:
    """Its gateway had told the client already, and the stop was still on its way."""
    promises.check_clients(told("stop", reason, has_stop=True))


@pytest.mark.parametrize("reason", [FinishReason.DEADLINE, FinishReason.CANCELLED])
def test_without_one_it_is_a_failure(reason: FinishReason) -> None:
    with pytest.raises(AssertionError, match="was told of no failure"):
        promises.check_clients(told("length", reason, has_stop=False))


def asked_for(stop: tuple[str, ...]) -> Submit:
    frame = Head(
        chat=False, model="m", created=0, num_choices=1, n=1, num_prompt_tokens=3, stop=stop
    ).to_frame()
    asked = submit("a")
    ending = replace(asked.ending, max_tokens=2 * NUM_TOKENS, end_tokens=())
    return replace(
        asked, prompts=((1, 2, 3),), n=1, ending=ending, deadline_seconds=1.0, frame=frame
    )


def told(finish: str, reason: FinishReason, *, has_stop: bool) -> Any:
    """A world whose one client was told this, all that it may be shown, and no failure."""
    tokens, _ = full_answer(asked_for(stop=()), 0)
    stops = (token_bytes(tokens[2]).decode(),) if has_stop else ()
    server = FaultyServer(random.Random(1), is_always=True, note=lambda _who, _what: None)
    client = Client(asked_for(stops), server)
    client.was_cancelled = client.is_over = True
    client.seen[0].text, client.seen[0].finish = client.expected[0], finish
    request = RequestId("a.0")
    server.books.submits[client.submit.submission_id] = client.submit
    server.books.committed[request] = dict(enumerate(tokens[:NUM_TOKENS]))
    server.books.ended[request] = Ended(request, NUM_TOKENS, reason)
    return SimpleNamespace(server=server, clients=[client], gateways=[])
