"""A pool that cannot go on says so at `/health`, and says so no more once it can."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.system.started import Started, start

pytestmark = pytest.mark.alone

STALL_SECONDS = 2.0
NUM_TOKENS = 200
BODY = {
    "model": "SmolLM2-135M-Instruct",
    "prompt": "Hi",
    "max_tokens": NUM_TOKENS,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}


@contextmanager
def stopped_worker(system: Started) -> Iterator[None]:
    """Alive, and does nothing: its supervisor has no reason to start it again."""
    children = psutil.Process(system.process.pid).children(recursive=True)
    [worker] = [child for child in children if "gpu_worker" in child.cmdline()[:3]]
    worker.suspend()
    try:
        yield
    finally:
        worker.resume()


def seconds_until(client: httpx.Client, status: int) -> float:
    began = time.monotonic()
    while client.get("/health").status_code != status:
        assert time.monotonic() - began < 20
        time.sleep(0.05)
    return time.monotonic() - began


def test_a_worker_that_stands_still_is_seen_and_forgiven(tmp_path: Path) -> None:
    system = start(
        tmp_path, "--backend=simulated", "--step-ms=10", f"--stall-seconds={STALL_SECONDS}"
    )
    with httpx.Client(base_url=system.url, timeout=60) as client:
        time.sleep(STALL_SECONDS + 1)
        assert client.get("/health").status_code == 200  # idle is no stall
        with client.stream("POST", "/v1/completions", json=BODY) as answer:
            lines = (line for line in answer.iter_lines() if line)
            next(lines)
            with stopped_worker(system):
                assert seconds_until(client, 503) > STALL_SECONDS / 2
                assert "no step came" in client.get("/health").json()["reason"]
            seconds_until(client, 200)
            *_, last, done = lines
    assert done == "data: [DONE]"
    assert json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"] == NUM_TOKENS
    assert system.stop() == 0
