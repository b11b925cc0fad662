"""Several gateways of one `up`: what each of them tells is true of all."""

import os
import signal
from pathlib import Path

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.system.started import Started, start

NUM_REQUESTS = 24
NUM_SCRAPES = 12  # so many that both gateways are asked


def fresh(system: Started, path: str, json: object = None) -> httpx.Response:
    """On a connection of its own, so that the kernel picks a gateway."""
    with httpx.Client(base_url=system.url, timeout=30) as client:
        return client.post(path, json=json) if json else client.get(path)


def scrape(system: Started) -> dict[str, float]:
    families = text_string_to_metric_families(fresh(system, "/metrics").text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def gateways(system: Started) -> list[psutil.Process]:
    children = psutil.Process(system.process.pid).children(recursive=True)
    return [child for child in children if "gateway" in child.cmdline()[:3]]


def test_whichever_gateway_is_scraped_tells_the_same(tmp_path: Path) -> None:
    """Also of one that was killed, and in a folder in which an earlier `up` counted."""
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "counter_1.db").write_bytes(b"of yesterday")
    system = start(tmp_path, "--backend=simulated", "--step-ms=1", "--gateways=2")
    body = {"model": "SmolLM2-135M-Instruct", "prompt": "Hi", "max_tokens": 3, "ignore_eos": True}
    for _ in range(NUM_REQUESTS):
        assert fresh(system, "/v1/completions", body).status_code == 200
    told = [scrape(system) for _ in range(NUM_SCRAPES)]
    assert {each["vllm:generation_tokens_total"] for each in told} == {3.0 * NUM_REQUESTS}
    assert {each["chairlift_responses_total"] for each in told} == {float(NUM_REQUESTS)}
    os.kill(gateways(system)[0].pid, signal.SIGKILL)
    assert scrape(system)["vllm:generation_tokens_total"] == 3 * NUM_REQUESTS
    assert system.stop() == 0
