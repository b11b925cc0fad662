"""The ledger's own eyes: what must not be is seen, in frames and in journals."""

from collections.abc import Sequence

import orjson
import pytest

from common.messages import Ended, FinishReason, Journal, RequestId
from tests.chaos.answer import Answer, Truth, Wish
from tests.chaos.faults import Fault
from tests.chaos.journals import check_answer
from tests.chaos.report import silences, stalls

WISH = Wish((1, 2), max_tokens=3, n=2, has_usage=True, key="k", leaves_after=0)
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
