"""Real processes: a gateway is killed in mid-stream, and its clients' streams go on at another."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.system.started import ROOT, Started, start
from tests.system.test_gateways import gateways

pytestmark = pytest.mark.alone

EXAMPLE = ROOT / "docs" / "examples" / "resume.py"
QUESTION = "What is a chairlift?"
PATH = "/v1/chat/completions"
NUM_TOKENS = 200  # that the example asks for
FLAGS = ("--backend=simulated", "--step-ms=10", "--gateways=2")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    system = start(tmp_path_factory.mktemp("data"), *FLAGS)
    yield system
    assert system.stop() == 0


def kill_who_answers(system: Started) -> None:
    """The gateway that a client is connected to; kill -9."""
    port = int(system.url.rpartition(":")[2])
    for gateway in gateways(system):
        for connection in gateway.net_connections("tcp"):
            if connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port == port:
                os.kill(gateway.pid, signal.SIGKILL)
                return
    raise AssertionError("no gateway has a client")


def body() -> dict[str, object]:
    messages = [{"role": "user", "content": QUESTION}]
    model = "SmolLM2-135M-Instruct"
    return {"model": model, "messages": messages, "max_tokens": NUM_TOKENS, "temperature": 0}


def whole_text(system: Started) -> str:
    """A gateway that has just started refuses until it has heard of a scheduler."""
    while (reply := httpx.post(f"{system.url}{PATH}", json=body(), timeout=60)).status_code == 503:
        time.sleep(0.1)
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


def test_the_example_reconnects_by_itself(system: Started) -> None:
    expected = whole_text(system)
    with subprocess.Popen(
        [sys.executable, str(EXAMPLE), QUESTION, system.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as client:
        assert client.stdout is not None
        assert client.stderr is not None
        text = client.stdout.read(40)
        kill_who_answers(system)
        text += client.stdout.read(len(expected.encode()) // 2)
        kill_who_answers(system)
        text += client.stdout.read()
        said = client.stderr.read().decode()
        assert client.wait() == 0, said
    assert text.decode() == expected + "\n"
    assert said.count("going on]") >= 2


def test_any_gateway_goes_on_from_the_last_event(system: Started) -> None:
    expected = whole_text(system)
    frames: list[str] = []
    wanted = {**body(), "stream": True, "stream_options": {"include_usage": True}}
    resumable = {"X-Resumable": "true"}
    with httpx.stream("POST", f"{system.url}{PATH}", json=wanted, headers=resumable) as reply:
        stream = reply.headers["x-stream-id"]
        with contextlib.suppress(httpx.TransportError):
            for line in reply.iter_lines():
                frames.append(line)
                if len(frames) == 90:
                    kill_who_answers(system)
    assert 90 <= len(frames) < 3 * NUM_TOKENS
    frames = frames[: len(frames) - len(frames) % 3]  # id, data, and the empty line
    last_event = frames[-3].removeprefix("id: ")
    headers = {"Last-Event-ID": last_event}
    rest = httpx.get(f"{system.url}/v1/streams/{stream}", headers=headers, timeout=60)
    assert rest.status_code == 200
    frames += rest.text.split("\n")
    chunks = [line.removeprefix("data: ") for line in frames if line.startswith("data: ")]
    assert chunks.pop() == "[DONE]"
    *parsed, usage = [json.loads(chunk) for chunk in chunks]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in parsed) == expected
    assert parsed[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["completion_tokens"] == NUM_TOKENS
    ids = [int(line[4:].partition(".")[0]) for line in frames if line.startswith("id: ")]
    assert ids == sorted(ids)
    assert httpx.get(f"{system.url}/v1/streams/chatcmpl-0", timeout=60).status_code == 404
