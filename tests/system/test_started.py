"""A started system with the embedded model: who leaves, who dies, and what is left."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from redis import Redis

from tests.conftest import leftovers
from tests.system.started import Started, start

pytestmark = pytest.mark.alone

CHAT = {
    "model": "SmolLM2-135M-Instruct",
    "messages": [{"role": "user", "content": "Tell me a long story about the sea."}],
    "temperature": 0,
}
ENDLESS = {**CHAT, "max_tokens": 4000, "ignore_eos": True}


def status(system: Started) -> dict[str, int]:
    with Redis.from_url(system.redis_url()) as redis:
        return json.loads(redis.hget("chairlift:{default}:status", "summary"))  # type: ignore[arg-type]


def until(condition: object, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_idle(system: Started) -> bool:
    summary = status(system)
    return summary["num_running"] == summary["num_waiting"] == 0


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_frees_its_seat(system: Started, is_stream: bool) -> None:
    """Also one that never reads, and waits for a whole answer."""
    until(lambda: is_idle(system))
    host, _, port = system.url.removeprefix("http://").partition(":")
    body = json.dumps({**ENDLESS, "stream": is_stream}).encode()
    with socket.create_connection((host, int(port))) as client:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        client.sendall(head.encode() + body)
        until(lambda: status(system)["num_running"] == 1)
    until(lambda: is_idle(system), 3.0)  # status is written twice a second


def test_the_small_routes(system: Started) -> None:
    with httpx.Client(base_url=system.url) as client:
        assert client.get("/ready").status_code == 200
        assert client.get("/health").status_code == 200
        assert client.get("/version").json()["version"]
        assert "vllm:generation_tokens_total" in client.get("/metrics").text
        assert client.get("/nowhere").json()["error"]["message"]


def test_the_queue_is_seen(system: Started) -> None:
    with (
        httpx.Client(base_url=system.url) as client,
        client.stream("POST", "/v1/chat/completions", json={**ENDLESS, "stream": True}) as stream,
    ):
        request_id = stream.headers["x-request-id"]
        frames = stream.iter_lines()  # one iterator: the answer is closed with it
        next(frames)
        with Redis.from_url(system.redis_url()) as redis:
            assert redis.xlen("chairlift:{default}:requests") == 1
            until(
                lambda: request_id.encode() in redis.hget("chairlift:{default}:status", "running")  # type: ignore[operator]
            )
            redis.xadd(
                "chairlift:{default}:control", {"kind": "cancel", "request": request_id}
            )  # as redis-cli would
        lines = [line for line in frames if line]
    assert "cancelled" in lines[-1]


@pytest.fixture
def own_system(tmp_path: Path) -> Iterator[Started]:
    """One for the test alone, which may stop it."""
    system = start(tmp_path)
    yield system
    if system.process.poll() is None:
        system.stop()


def test_whoever_is_killed_the_stream_goes_on(own_system: Started) -> None:
    """The worker, the scheduler and the server, one after the other, while an answer streams."""
    system = own_system
    assert system.ready_seconds < 15
    wanted = {**CHAT, "max_tokens": 300, "ignore_eos": True}
    with httpx.Client(base_url=system.url, timeout=120) as client:
        whole = client.post("/v1/chat/completions", json=wanted).json()
        text, num_frames = "", 0
        victims = {20: "gpu_worker", 90: "scheduler", 160: "valkey-server"}
        with client.stream(
            "POST", "/v1/chat/completions", json={**wanted, "stream": True}
        ) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                [choice] = json.loads(line.removeprefix("data: "))["choices"]
                text += choice["delta"].get("content") or ""
                num_frames += 1
                if name := victims.pop(num_frames, None):
                    kill(system, name)
    assert not victims
    assert text == whole["choices"][0]["message"]["content"]
    until(lambda: is_idle(system))
    children = psutil.Process(system.process.pid).children(recursive=True)
    assert system.stop() == 0
    assert not [child for child in children if child.is_running()]
    assert not (system.data_dir / "redis-url").exists()


def kill(system: Started, name: str) -> None:
    for child in psutil.Process(system.process.pid).children(recursive=True):
        if any(name in word for word in child.cmdline()[:4]):
            os.kill(child.pid, signal.SIGKILL)
            return
    raise AssertionError(f"no process {name}")


def test_nothing_is_left(system: Started) -> None:
    """Runs last of this file: whatever the tests before asked for is gone."""
    until(lambda: is_idle(system))

    class Server:
        def client(self) -> Redis:
            return Redis.from_url(system.redis_url())

    def left() -> list[str]:
        live = ("steps:", "results:")  # of the worker that lives
        return [key for key in leftovers(Server(), "default") if not key.startswith(live)]  # type: ignore[arg-type]

    until(lambda: left() == [])
