"""Replies are read as they were meant, however they are cut on their way."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.redis_bus.replies import ReplyError, ReplyReader


class RefusalError(Exception):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, RefusalError) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


def write(value: Any) -> bytes:
    """RESP2, as a server writes it."""
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, RefusalError):
        return b"-%s\r\n" % value.args[0].encode()
    if isinstance(value, bytes):
        return b"$%d\r\n%s\r\n" % (len(value), value)
    return b"*%d\r\n" % len(value) + b"".join(map(write, value))


words = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))
simple = st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary() | st.builds(RefusalError, words)
values = st.recursive(simple, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


@given(st.lists(values, max_size=5), st.data())
def test_any_cut_of_any_replies_gives_the_same(replies: list[Any], data: st.DataObject) -> None:
    written = b"".join(map(write, replies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)))))
    reader, found = ReplyReader(RefusalError), []
    for start, stop in zip([0, *cuts], [*cuts, len(written)], strict=True):
        found += reader.feed(written[start:stop])
    assert found == replies


def test_lines_and_what_is_missing() -> None:
    reader = ReplyReader(RefusalError)
    assert reader.feed(b"+OK\r\n*-1\r\n*0\r\n$0\r\n\r\n") == [b"OK", None, [], b""]
    assert reader.feed(b"*2\r\n+a\r\n") == []
    assert reader.feed(b"-ERR no\r\n") == [[b"a", RefusalError("ERR no")]]


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400\r\n", b"$x\r\n", b"*y\r\n", b":\r\n"])
def test_what_is_no_reply_is_refused(garbage: bytes) -> None:
    with pytest.raises((ReplyError, ValueError)):
        ReplyReader(RefusalError).feed(garbage)
