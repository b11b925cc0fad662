"""Clients that ask for much and read nothing: a gateway keeps a bounded part, others go on.

The answer is computed all the same and stands in its journal; who reads at last gets all of it.
"""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.system.served import truth
from tests.system.started import Started, start
from tests.system.test_started import is_idle, until

BODY = {"model": "SmolLM2-135M-Instruct", "ignore_eos": True, "stream": True}
NUM_CLIENTS, CHOICES, TOKENS = 3, 8, 3000  # 250 bytes a frame: 6 MB each, the kernel takes 4
MAX_GROWTH_MIB = 3.0
MAX_SLOWDOWN = 6.0  # of another stream, whose rows now share each step with others


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Started]:
    system = start(tmp_path, "--backend=simulated", "--step-ms=0")
    yield system
    assert system.stop() == 0


def gateway_mib(system: Started) -> float:
    children = psutil.Process(system.process.pid).children(recursive=True)
    [gateway] = [child for child in children if "gateway" in child.cmdline()[:3]]
    return float(gateway.memory_info().rss) / 2**20


def ask(system: Started, number: int) -> socket.socket:
    host, _, port = system.url.removeprefix("http://").partition(":")
    client = socket.create_connection((host, int(port)), timeout=30)
    wanted = {**BODY, "prompt": f"Number {number}", "n": CHOICES, "max_tokens": TOKENS}
    body = json.dumps(wanted).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def stream_seconds(system: Started) -> float:
    """How long an answer takes to somebody who reads."""
    began = time.monotonic()
    wanted = {**BODY, "prompt": "Another", "max_tokens": 300}
    with httpx.Client(base_url=system.url, timeout=60) as client:
        reply = client.post("/v1/completions", json=wanted)
    assert reply.text.count("data: ") >= 300
    return time.monotonic() - began


def read_whole(client: socket.socket) -> bytes:
    answer = b""
    while piece := client.recv(1 << 20):
        answer += piece
    return answer


def texts(answer: bytes) -> dict[int, str]:
    """Of each choice."""
    found: dict[int, str] = {}
    for line in answer.split(b"\n"):
        if line.startswith(b"data: {"):
            [choice] = json.loads(line[6:])["choices"]
            found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return found


def test_who_reads_nothing_costs_a_bounded_part_and_may_read_later(system: Started) -> None:
    stream_seconds(system)
    alone, before = stream_seconds(system), gateway_mib(system)
    clients = [ask(system, number) for number in range(NUM_CLIENTS)]
    time.sleep(0.5)
    beside = stream_seconds(system)
    until(lambda: is_idle(system), 60)  # all is computed, and nobody has read
    growth = gateway_mib(system) - before
    print(
        f"growth {growth:.1f} MiB; another stream {alone:.2f} s alone, {beside:.2f} s beside them"
    )
    assert growth < MAX_GROWTH_MIB
    assert beside < MAX_SLOWDOWN * alone + 1.0
    answer = read_whole(clients[0])
    assert b"data: [DONE]" in answer[-40:]
    assert texts(answer) == dict.fromkeys(range(CHOICES), truth("Number 0", TOKENS))
    for client in clients:
        client.close()
    assert stream_seconds(system) > 0
