"""Processes that share a folder tell the same sums, whoever is asked and whoever has died."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.metrics import SHARED

ROOT = Path(__file__).parents[2]
PROCESS = """
import sys
from common.metrics import GatewayMetrics
metrics = GatewayMetrics("m")
for line in sys.stdin:
    exec(line)
    sys.stdout.write(metrics.exposition().decode() + "# EOF\\n")
    sys.stdout.flush()
"""


class Process:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def do(self, line: str) -> dict[str, float]:
        """What it tells once it has done so."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{line}\n")
        stdin.flush()
        text = ""
        while not text.endswith("# EOF\n"):
            line = stdout.readline()
            assert line, "it has died"
            text += line
        families = text_string_to_metric_families(text)
        return {sample.name: sample.value for family in families for sample in family.samples}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def started(folder: Path) -> Iterator[Process]:
    environ = os.environ | {SHARED: str(folder), "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", PROCESS]
    with subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Process(process)
        finally:
            process.kill()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Process, Process]]:
    folder = tmp_path / "made" / "metrics"
    with started(folder) as one, started(folder) as other:
        yield one, other


def test_each_tells_the_sums_of_all(pair: tuple[Process, Process]) -> None:
    for process, count in zip(pair, (2, 3), strict=True):
        process.do(f"metrics.prompt_tokens.inc({count})")
        process.do(f"for _ in range({count}): metrics.ttft.observe(0.3)")
        process.do("metrics.count_choice('stop')")
        process.do(f"metrics.open_answers.set({count})")
        process.do(f"metrics.running.set({count})")
    for process in pair:
        told = process.do("")
        assert told["chairlift_prompt_tokens_total"] == told["vllm:prompt_tokens_total"] == 5
        assert told["vllm:time_to_first_token_seconds_count"] == 5
        assert told["chairlift_choices_total"] == told["vllm:request_success_total"] == 2
        assert told["chairlift_open_answers"] == 5
        assert told["vllm:num_requests_running"] == 3  # the pool's, as told last


def test_a_file_that_is_just_being_made_stops_nobody(
    pair: tuple[Process, Process], tmp_path: Path
) -> None:
    pair[0].do("metrics.prompt_tokens.inc()")
    (tmp_path / "made" / "metrics" / "counter_1.db").touch()
    assert pair[1].do("")["chairlift_prompt_tokens_total"] == 1


def test_what_the_dead_have_counted_stays_and_they_answer_nobody(
    pair: tuple[Process, Process],
) -> None:
    one, other = pair
    for process in pair:
        process.do("metrics.prompt_tokens.inc(4)")
        process.do("metrics.open_answers.set(1)")
    one.kill()
    told = other.do("")
    assert told["chairlift_prompt_tokens_total"] == 8
    assert told["chairlift_open_answers"] == 1
