"""Replies are read as they were meant, however they are cut on their way; what is none ends it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from common.redis_bus.connection import Connection, LostError

REPLIES = b"+OK\r\n:7\r\n*2\r\n$3\r\na\r\n\r\n*1\r\n$-1\r\n-ERR no such thing\r\n*-1\r\n"


class Opened:
    """What redis-py hands over."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def disconnect(self, *, nowait: bool) -> None: ...


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    _, writer = await asyncio.open_connection(sock=ours)
    connection = Connection(cast("AbstractConnection", Opened(writer)))
    yield connection, theirs
    await connection.aclose()
    theirs.close()


async def send(peer: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(peer, data)
    await asyncio.sleep(0)


async def received(connection: Connection, count: int) -> list[Any]:
    replies = await connection.receive(count, 5.0)
    assert replies is not None
    return replies


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_any_cut_of_replies_gives_the_same(
    ends: tuple[Connection, socket.socket], size: int
) -> None:
    connection, peer = ends
    waiting = asyncio.create_task(received(connection, 5))
    for start in range(0, len(REPLIES), size):
        await send(peer, REPLIES[start : start + size])
        await asyncio.sleep(0)
    ok, seven, nested, error, nothing = await waiting
    assert (ok, seven, nested, nothing) == (b"OK", 7, [b"a\r\n", [None]], None)
    assert isinstance(error, ResponseError)
    assert str(error) == "no such thing"


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400\r\n", b"$x\r\n", b"*y\r\n"])
async def test_what_is_no_reply_loses_the_connection(
    ends: tuple[Connection, socket.socket], garbage: bytes
) -> None:
    connection, peer = ends
    await send(peer, b":1\r\n" + garbage)
    assert await received(connection, 1) == [1]
    with pytest.raises(LostError):
        await connection.receive(1, 5.0)
    with pytest.raises(LostError):
        await connection.exchange(b"PING\r\n", 1, 5.0)


async def test_silence_is_told_and_an_end_is_a_loss(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, peer = ends
    assert await connection.receive(1, 0.01) is None
    peer.close()
    with pytest.raises(LostError):
        await connection.receive(1, 5.0)
