"""What is known of public traces is found again; `CHAIRLIFT_TRACES` names their folder."""

import json
import os
from pathlib import Path

import pytest

from scheduler.simulation.cases import run_case
from scheduler.simulation.figures import Figures
from scheduler.simulation.options import make_options

FOLDER = Path(os.environ.get("CHAIRLIFT_TRACES", ""))
AZURE = FOLDER / "azure-2023-conv.csv"
MOONCAKE = FOLDER / "mooncake-conversation.jsonl"
OVERLOAD = FOLDER / "vtc-overload-fcfs.csv"


def needs(file: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not file.is_file(), reason=f"no {file.name} in CHAIRLIFT_TRACES")


def run(file: Path, **given: str) -> Figures:
    return run_case(make_options({"workload": str(file), **given}, {})).figures


@needs(AZURE)
def test_azure() -> None:
    case = run(AZURE, requests="300", cost="h200-8b", rate_scale="4")
    assert case["ended"] == 300


@needs(MOONCAKE)
def test_prefixes_are_found_as_often_as_the_trace_has_them() -> None:
    """In a cache without end, each whole block that came before is found, but for the last token.

    A block that only just came may be computed twice.
    """
    seen: set[int] = set()
    found = total = 0
    for line in MOONCAKE.read_text().splitlines()[:400]:
        request = json.loads(line)
        hashes = request["hash_ids"]
        known = next((i for i, h in enumerate(hashes) if h not in seen), len(hashes))
        found += min(known, (request["input_length"] - 1) // 512)
        total += len(hashes)
        seen.update(hashes)
    case = run(
        MOONCAKE, requests="400", block_size="512", num_blocks="20000", max_step_tokens="8192"
    )
    assert case["prefix_hits"]["block_share"] == pytest.approx(found / total, abs=0.01)


@needs(OVERLOAD)
def test_fair_shares_close_the_gap_that_first_come_first_served_leaves() -> None:
    """Published for the first 360 s: 78.5k and 153k at most, against 3.5k and 7.9k. Here: 120 s."""
    given = {"cost": "a10g-7b", "block_size": "1", "num_blocks": "10000", "stop_seconds": "120"}
    given |= {"max_step_tokens": "4096", "preemption": "never", "prefix_cache": "off"}
    first, fair = (run(OVERLOAD, **given, policy=policy) for policy in ("fcfs", "fair"))
    assert first["fairness"]["max_gap"] > 40_000
    assert fair["fairness"]["max_gap"] < 10_000
    assert fair["fairness"]["mean_gap"] < first["fairness"]["mean_gap"] / 5
    assert fair["tokens_per_second"] == pytest.approx(first["tokens_per_second"], rel=0.02)
