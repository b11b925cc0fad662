"""Clients of a gateway that cost next to nothing: many streams, read by one process in one loop.

What comes is only kept, with the moment and the position it goes to; it is looked at afterwards.
"""

import os
import re
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import orjson

IDS = re.compile(rb"^id: (\d+)$", re.MULTILINE)
READ_BYTES = 1 << 18
GIVE_UP_SECONDS = 30.0  # without a byte for anybody


@dataclass(slots=True)
class Stream:
    """One answer, as it came."""

    parts: list[bytes] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)  # of the parts, monotonic
    is_over: bool = False


@dataclass(frozen=True)
class Readings:
    """What all streams brought, checked. `arrivals`: by stream and position, monotonic seconds."""

    arrivals: list[list[float]]
    num_frames: int  # with text
    num_reads: int
    cpu_seconds: float  # of this process, from the first part on until the last


def read_streams(
    pipe: Connection, port: int, num_streams: int, texts: Sequence[str], cores: Sequence[int]
) -> None:
    """The process: ask, read to the end, check, and send `Readings`, or what went wrong."""
    os.sched_setaffinity(0, cores)
    poller, streams = select.epoll(), {}
    sockets = [ask(port) for _ in range(num_streams)]
    for connection in sockets:
        streams[connection.fileno()] = Stream()
        poller.register(connection, select.EPOLLIN)
    by_number = {connection.fileno(): connection for connection in sockets}
    began: float | None = None
    num_open = num_streams
    while num_open:
        ready = poller.poll(GIVE_UP_SECONDS)
        if not ready:
            pipe.send(f"{num_open} streams did not end")
            return
        began = time.process_time() if began is None else began
        for number, _ in ready:
            data = by_number[number].recv(READ_BYTES)
            stream = streams[number]
            stream.moments.append(time.monotonic())
            stream.parts.append(data)
            if not data or data.endswith(b"0\r\n\r\n"):
                poller.unregister(number)
                num_open -= 1
    cpu_seconds = time.process_time() - (began or 0.0)
    try:
        pipe.send(readings(list(streams.values()), texts, cpu_seconds))
    except ValueError as error:
        pipe.send(str(error))


def ask(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = orjson.dumps({"model": "bench", "prompt": "a", "stream": True})
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def readings(streams: list[Stream], texts: Sequence[str], cpu_seconds: float) -> Readings:
    """ValueError if a stream lacks a token, repeats one, or says another text."""
    for stream in streams:
        check(b"".join(stream.parts), texts)
    return Readings(
        arrivals=[arrivals(stream) for stream in streams],
        num_frames=len(texts) * len(streams),
        num_reads=sum(len(stream.parts) for stream in streams),
        cpu_seconds=cpu_seconds,
    )


def check(raw: bytes, texts: Sequence[str]) -> None:
    head, _, body = raw.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise ValueError(f"refused: {raw[:300]!r}")
    events = dechunked(body).split(b"\n\n")
    if events[-2:] != [b"data: [DONE]", b""] or len(events) != len(texts) + 3:
        raise ValueError(f"{len(events) - 3} frames of {len(texts)}, last {events[-2:]!r}")
    for position, (event, text) in enumerate(zip(events[:-3], texts, strict=True), 1):
        first, _, data = event.partition(b"\ndata: ")
        choice = orjson.loads(data)["choices"][0]
        if first != b"id: %d" % position or choice["text"] != text:
            raise ValueError(f"not {text!r} as number {position}: {event!r}")


def dechunked(body: bytes) -> bytes:
    parts, at = [], 0
    while (end := body.find(b"\r\n", at)) >= 0:
        size = int(body[at:end], 16)
        parts.append(body[end + 2 : end + 2 + size])
        at = end + 4 + size
    return b"".join(parts)


def arrivals(stream: Stream) -> list[float]:
    """When each token was here. An id that was cut in two counts with its second half."""
    found: list[float] = []
    rest = b""
    for moment, part in zip(stream.moments, stream.parts, strict=True):
        whole, end, rest = (rest + part).rpartition(b"\n")
        last = int(ids[-1]) if end and (ids := IDS.findall(whole)) else 0
        found.extend([moment] * (last - len(found)))
    return found
