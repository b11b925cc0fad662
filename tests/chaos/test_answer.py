"""The ledger's own eyes: what must not be is seen, in frames and in journals."""

import asyncio
import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from common.messages import Ended, FinishReason, Journal, RequestId
from tests.chaos.answer import Answer, Truth, Wish
from tests.chaos.faults import Fault
from tests.chaos.journals import check_answer
from tests.chaos.process import Process
from tests.chaos.report import records, silences, stalls
from tests.chaos.run import Options, Outcome
from tests.chaos.site import until

WISH = Wish((1, 2), max_tokens=3, n=2, has_usage=True, key="k")
TRUTH = Truth(WISH, lambda token: f" {token}".encode())
TEXTS = [TRUTH.text[a:b] for a, b in zip(TRUTH.ends, TRUTH.ends[1:], strict=False)]
USAGE = {"prompt_tokens": 2, "completion_tokens": 6}


def frame(event: str, *, stream: str = "cmpl-a", **said: object) -> bytes:
    body = {"id": stream, "choices": [], "usage": None, **said}
    return f"id: {event}\ndata: ".encode() + orjson.dumps(body) + b"\n\n"


def token(event: str, index: int, text: str, finish: str | None = None) -> bytes:
    return frame(event, choices=[{"index": index, "text": text, "finish_reason": finish}])


RIGHT = [
    token("1,0", 0, TEXTS[0]),
    token("1,1", 1, TEXTS[0]),
    token("2,1", 0, TEXTS[1]),
    token("2,2", 1, TEXTS[1]),
    token("3,2", 0, TEXTS[2]),
    token("3,3", 1, TEXTS[2]),
    token("3.end,3", 0, "", "length"),
    token("3.end,3.end", 1, "", "length"),
    frame("3.end,3.end,usage", usage=USAGE),
    b"data: [DONE]\n\n",
]


def answered(frames: Sequence[bytes], cuts: Sequence[int] = ()) -> Answer:
    """`cuts`: before which frames the connection broke, within the one that came then."""
    answer = Answer(WISH, TRUTH, lambda: 0.0)
    answer.connect()
    for number, data in enumerate(frames):
        if number in cuts:
            answer.feed(data[:-5])
            answer.connect()
        answer.feed(data)
    return answer


def test_a_right_answer_is_right_however_often_it_is_cut() -> None:
    answer = answered(RIGHT, cuts=range(0, len(RIGHT), 2))
    assert answer.wrong == []
    assert answer.is_done
    assert answer.num_tokens == 6
    assert answer.last_event == "3.end,3.end,usage"


@pytest.mark.parametrize("number", range(len(RIGHT) - 1))
def test_a_frame_that_is_lost_is_seen(number: int) -> None:
    assert answered([*RIGHT[:number], *RIGHT[number + 1 :]]).wrong


@pytest.mark.parametrize("number", range(len(RIGHT)))
def test_a_frame_that_comes_twice_is_seen(number: int) -> None:
    assert answered([*RIGHT[:number], RIGHT[number], *RIGHT[number:]]).wrong


@pytest.mark.parametrize(
    "strange",
    [
        token("2,1", 0, TEXTS[0]),  # another token's text
        token("2,1", 0, TEXTS[1] + TEXTS[2]),  # more than the id says
        token("2,1", 0, "", "stop"),
        frame("2,1", stream="cmpl-b"),
        frame("2,1", usage={"prompt_tokens": 2, "completion_tokens": 5}),
    ],
)
def test_what_is_not_right_is_seen(strange: bytes) -> None:
    assert answered([*RIGHT[:2], strange, *RIGHT[2:]]).wrong


# A chat with a stop string: the text of the second token, in pieces of which a part is held back.

STOPPED = Wish((1, 2), max_tokens=3, has_usage=True, content="x", stop=TEXTS[1] + TEXTS[2][:1])
STOPPED_TRUTH = Truth(STOPPED, lambda token: f" {token}".encode())


def said(event: str, finish: str | None = None, **delta: str) -> bytes:
    return frame(event, choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


CHAT = [
    said("1", role="assistant", content=TEXTS[0]),
    said("3.end", "stop"),
    frame("3.end,usage", usage={"prompt_tokens": 2, "completion_tokens": 3}),
    b"data: [DONE]\n\n",
]


def chatted(frames: Sequence[bytes]) -> Answer:
    answer = Answer(STOPPED, STOPPED_TRUTH, lambda: 0.0)
    answer.connect()
    for data in frames:
        answer.feed(data)
    return answer


def test_a_chat_that_meets_its_stop_string_is_right() -> None:
    answer = chatted(CHAT)
    assert answer.wrong == []
    assert answer.is_done
    assert answer.shown == [(0.0, 0, 1), (0.0, 0, 3)]


@pytest.mark.parametrize(
    "strange",
    [
        said("1", content=TEXTS[0]),  # who speaks?
        said("1", role="assistant", content=TEXTS[0] + TEXTS[1]),  # the stop string's text
        said("1", role="assistant"),  # text that begins no stop string is held back
        said("3.end", "length", role="assistant", content=TEXTS[0]),
        said("2.end", "stop", role="assistant", content=TEXTS[0]),
    ],
)
def test_what_is_not_right_in_a_chat_is_seen(strange: bytes) -> None:
    assert chatted([strange, *CHAT[1:]]).wrong


def test_a_stop_string_holds_back_what_may_begin_it_and_no_more() -> None:
    wish = Wish((1, 2), max_tokens=3, stop="none")
    truth = Truth(wish, lambda token: f" {token}".encode())
    assert (truth.finish, truth.num_tokens) == ("length", 3)
    assert truth.fits(truth.text[: truth.ends[2]], 2)
    assert truth.fits(truth.text[: truth.ends[2] - 3], 2)
    assert not truth.fits(truth.text[: truth.ends[2] - 4], 2)
    assert not truth.fits(truth.text[: truth.ends[2] + 1], 2)


WHOLE_WISH = Wish((1, 2), max_tokens=3, n=2, has_usage=True, streams=False)


@pytest.mark.parametrize(
    ("texts", "finish", "completion_tokens", "is_right"),
    [
        ([TRUTH.text, TRUTH.text], "length", 6, True),
        ([TRUTH.text], "length", 6, False),
        ([TRUTH.text, TRUTH.text[:-1]], "length", 6, False),
        ([TRUTH.text, TRUTH.text], "stop", 6, False),
        ([TRUTH.text, TRUTH.text], "length", 5, False),
    ],
)
def test_an_answer_that_is_not_streamed_is_checked_as_a_whole(
    texts: Sequence[str], finish: str, completion_tokens: int, is_right: bool
) -> None:
    choices = [{"index": i, "text": text, "finish_reason": finish} for i, text in enumerate(texts)]
    usage = {"prompt_tokens": 2, "completion_tokens": completion_tokens}
    answer = Answer(WHOLE_WISH, TRUTH, lambda: 0.0)
    answer.connect()
    answer.feed(orjson.dumps({"id": "cmpl-a", "choices": choices, "usage": usage}))
    answer.take_whole()
    assert (answer.wrong == []) is is_right


def journal(num_tokens: int, kept: int, reason: FinishReason, error: str = "") -> Journal:
    tokens = tuple(WISH.tokens()[:num_tokens])
    return Journal(None, tokens, Ended(RequestId("a.0"), kept, reason, error))


WHOLE = journal(3, 3, FinishReason.LENGTH)
POISONED = journal(1, 1, FinishReason.ERROR, "2 workers that computed it died")


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("whole", [WHOLE, Journal(None, WHOLE.tokens)]),
        ("whole", [WHOLE, journal(3, 2, FinishReason.LENGTH)]),
        ("whole", [WHOLE, journal(2, 3, FinishReason.LENGTH)]),
        ("whole", [WHOLE, Journal(None, (1, 2, 3), WHOLE.end)]),
        ("whole", [WHOLE, POISONED]),
        ("left", [WHOLE, journal(2, 2, FinishReason.CANCELLED)]),  # it has a key
        ("left", [WHOLE, journal(2, 2, FinishReason.ERROR, "something else")]),
        ("failed: internal_error", [WHOLE, WHOLE]),
        ("failed: cancelled", [WHOLE, journal(2, 2, FinishReason.CANCELLED)]),
    ],
)
def test_a_journal_that_is_not_right_is_seen(outcome: str, told: Sequence[Journal]) -> None:
    answer = answered(RIGHT)
    answer.outcome = outcome
    assert list(check_answer(answer, told))


def stopped(kept: int, reason: FinishReason, num_tokens: int = 3) -> Journal:
    tokens = tuple(STOPPED.tokens()[:num_tokens])
    return Journal(None, tokens, Ended(RequestId("a.0"), kept, reason))


@pytest.mark.parametrize(
    ("told", "is_right"),
    [
        (stopped(3, FinishReason.STOP), True),
        (stopped(3, FinishReason.LENGTH), True),  # the last token came before the stop did
        (stopped(2, FinishReason.STOP), False),
        (stopped(2, FinishReason.CANCELLED, 2), False),  # it has a key
    ],
)
def test_where_a_stop_string_was_found_the_journal_says_so(told: Journal, is_right: bool) -> None:
    answer = chatted(CHAT)
    answer.wish, answer.outcome = replace(STOPPED, key="k"), "whole"
    assert (not list(check_answer(answer, [told]))) is is_right


def test_a_request_is_cancelled_only_where_somebody_asked_for_it() -> None:
    answer = answered(RIGHT[:1])
    answer.outcome = "cancelled"
    ended = [journal(2, 2, FinishReason.CANCELLED)] * 2
    assert list(check_answer(answer, ended))
    answer.wish = replace(WISH, cancels_after=1)
    assert not list(check_answer(answer, ended))
    assert list(check_answer(answer, [WHOLE, WHOLE]))  # why was its client told so?


def test_what_clients_were_shown_is_recorded_token_by_token() -> None:
    client: Any = Namespace(answers=[answered(RIGHT)])
    outcome = Outcome(Options(), clients=[client], began_at=-1.0)
    told = [(each["request"], each["position"], each["token"]) for each in records(outcome)]
    right = [(f"cmpl-a.{c}", p, WISH.tokens()[p]) for p in range(3) for c in range(2)]
    assert sorted(told) == sorted(right)
    assert {each["at"] for each in records(outcome)} == {1.0}


def test_a_journal_that_is_right_is_right() -> None:
    answer = answered(RIGHT)
    for outcome, told in (("whole", WHOLE), ("left", WHOLE), ("failed: internal_error", POISONED)):
        answer.outcome = outcome
        assert list(check_answer(answer, [WHOLE, told])) == []


def test_stalls_and_silences() -> None:
    answer = answered(RIGHT[:1])
    answer.times, answer.began_at, answer.over_at = [1.0, 2.5, 3.0, 7.0, 9.0], 0.0, 9.0
    fault = Fault("kill", "worker", 0.0, at=2.0)
    assert stalls(fault, [answer]) == [0.5]
    assert silences(fault, 10.0, [answer]) == [4.0]
    assert silences(fault, 4.0, [answer]) == [0.5]  # the longest belongs to the next fault
    assert stalls(Fault("kill", "worker", 0.0, at=9.5), [answer]) == []


@pytest.mark.parametrize(
    ("words", "is_expected"),
    [("chairlift gateway: no Redis answers within 30 s", True), ("Segmentation fault", False)],
)
async def test_a_process_that_ends_by_itself_is_seen_but_for_want_of_a_server(
    tmp_path: Path, words: str, is_expected: bool
) -> None:
    command = ("sh", "-c", f"echo earlier; echo {words}; exit 2")
    process = Process("p", command, {"PATH": os.defpath}, tmp_path / "log")
    async with asyncio.TaskGroup() as tasks:
        life = tasks.create_task(process.run())
        await until(lambda: process.num_lives > 1, 20.0)
        life.cancel()
    assert (process.deaths == []) is is_expected
