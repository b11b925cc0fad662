"""Any split of any text into tokens gives that text, cut at a stop string, and held no longer."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.detokenizer import Detokenizer

STOPS = st.lists(st.text("ab<é", min_size=1, max_size=4), max_size=3)
TEXTS = st.text("ab<é😀", max_size=24)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def shown_after_each(pieces: list[bytes], stop: list[str], **more: object) -> list[str]:
    """All that is shown after 1, 2 … tokens, then at the end."""
    detokenizer = Detokenizer(pieces.__getitem__, stop, **more)  # type: ignore[arg-type]
    shown = [detokenizer.feed([index]) for index in range(len(pieces))] + [detokenizer.finish()]
    return ["".join(shown[: count + 1]) for count in range(len(shown))]


def first_stop(text: str, stop: list[str], after: int = 0) -> tuple[int, int] | None:
    """[start, end) of the stop string that ends first, of these the longest; slow and plain."""
    for end in range(after + 1, len(text) + 1):
        starts = [end - len(one) for one in stop if text[:end].endswith(one)]
        if starts:
            return min(starts), end
    return None


def held_length(text: str, stop: list[str]) -> int:
    prefixes = {one[:length] for one in stop for length in range(1, len(one))}
    return max((len(prefix) for prefix in prefixes if text.endswith(prefix)), default=0)


@given(st.binary(max_size=40), st.lists(st.integers(0, 40)))
def test_any_split_of_any_bytes_gives_what_decoding_the_whole_gives(
    data: bytes, cuts: list[int]
) -> None:
    assert shown_after_each(split(data, cuts), [])[-1] == data.decode(errors="replace")


@given(TEXTS, STOPS, st.lists(st.integers(0, 80)))
def test_any_split_is_cut_at_the_same_place(text: str, stop: list[str], cuts: list[int]) -> None:
    found = first_stop(text, stop)
    expected = text if found is None else text[: found[0]]
    assert shown_after_each(split(text.encode(), cuts), stop)[-1] == expected


@given(TEXTS, STOPS, st.lists(st.integers(0, 80)))
def test_only_halves_of_characters_and_beginnings_of_stops_are_held(
    text: str, stop: list[str], cuts: list[int]
) -> None:
    pieces = split(text.encode(), cuts)
    shown = shown_after_each(pieces, stop)
    for count in range(1, len(pieces) + 1):
        so_far = b"".join(pieces[:count]).decode(errors="ignore")
        if first_stop(so_far, stop) is None:
            assert shown[count - 1] == so_far[: len(so_far) - held_length(so_far, stop)]


@given(TEXTS, STOPS, st.lists(st.integers(0, 80)), st.data())
def test_what_is_shown_does_not_depend_on_how_tokens_arrive(
    text: str, stop: list[str], cuts: list[int], data: st.DataObject
) -> None:
    pieces = split(text.encode(), cuts)
    one_by_one = shown_after_each(pieces, stop)
    count = data.draw(st.integers(1, len(pieces)))
    together = Detokenizer(pieces.__getitem__, stop)
    assert together.feed(range(count)) == one_by_one[count - 1]


@given(TEXTS, STOPS, st.lists(st.integers(0, 80)), st.integers(0, 6))
def test_stop_strings_that_end_within_min_tokens_do_not_count(
    text: str, stop: list[str], cuts: list[int], min_tokens: int
) -> None:
    pieces = split(text.encode(), cuts)
    detokenizer = Detokenizer(pieces.__getitem__, stop, min_tokens=min_tokens)
    shown = detokenizer.feed(range(len(pieces))) + detokenizer.finish()
    early = b"".join(pieces[:min_tokens]).decode(errors="ignore")
    found = first_stop(text, stop, after=len(early))
    assert shown == (text if found is None else text[: found[0]])
    assert (detokenizer.stopped is None) == (found is None)


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "stopped"),
    [
        pytest.param(["a", "EN", "D", "b"], ["END"], "a", 3, id="across-tokens"),
        pytest.param(["xENDy"], ["END"], "x", 1, id="inside-a-token"),
        pytest.param(["a", "EN", "ox"], ["END"], "aENox", None, id="false-alarm"),
        pytest.param(["a", "EN"], ["END"], "aEN", None, id="ends-while-held"),
        pytest.param(["aab", "aac"], ["aabaac"], "", 2, id="whole-answer"),
        pytest.param(["aabaabaac"], ["aabaac"], "aab", 1, id="restarts-inside-a-match"),
        pytest.param(["abcd"], ["abcd", "bc"], "a", 1, id="first-end-wins"),
        pytest.param(["xab"], ["b", "ab"], "x", 1, id="longest-of-one-end"),
    ],
)
def test_stop_strings(pieces: list[str], stop: list[str], text: str, stopped: int | None) -> None:
    detokenizer = Detokenizer([piece.encode() for piece in pieces].__getitem__, stop)
    shown = "".join(detokenizer.feed([index]) for index in range(len(pieces)))
    assert shown + detokenizer.finish() == text
    assert detokenizer.stopped == stopped
    assert detokenizer.num_tokens == (stopped or len(pieces))


def test_a_stop_string_may_begin_inside_one_that_did_not_count() -> None:
    detokenizer = Detokenizer([b"aa", b"a"].__getitem__, ["aa"], min_tokens=1)
    assert detokenizer.feed([0, 1]) == "a"
    assert detokenizer.stopped == 2


def test_hidden_tokens_are_counted_and_not_shown() -> None:
    detokenizer = Detokenizer([b"a", b"\n"].__getitem__, hidden=frozenset({1}))
    assert detokenizer.feed([0, 1]) == "a"
    assert detokenizer.num_tokens == 2
