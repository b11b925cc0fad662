"""A short run of `python -m tests.soak` in the default tests, and what its verdict sees."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak import verdict
from tests.soak.habits import WEIGHTS
from tests.soak.run import Options, run
from tests.soak.watch import Held, Sample

SHORT = Options(
    minutes=0.12, warm_up_minutes=0.0, rate=12.0, seed=3, sample_seconds=1.0, journal_seconds=4
)
REST = Sample(
    0.0, {"gateway": Held(60.0, 30, 2), "valkey": Held(4.0, 40, 6)}, 2, 2, 2.0, 10.0, 50.0
)


@pytest.mark.timeout(240)
async def test_every_client_is_answered_and_nothing_of_them_stays(tmp_path: Path) -> None:
    """Memory is not judged: it takes minutes to settle."""
    outcome = await run(SHORT, tmp_path, lambda _: None)
    print(outcome.outcomes)
    assert outcome.wrong == []
    assert {text.partition(":")[0] for text in outcome.outcomes} >= WEIGHTS.keys() - {"looks"}
    assert outcome.samples
    settled = {name: replace(held, threads=9) for name, held in outcome.warm.held.items()}
    left = verdict.left_behind(replace(outcome.warm, held=settled), outcome.rest)
    assert [text for text in left if "MiB" not in text] == []


def with_gateway(**values: float) -> Sample:
    return replace(REST, held=REST.held | {"gateway": replace(REST.held["gateway"], **values)})  # type: ignore[arg-type]


def test_what_is_held_at_rest_and_was_not_before_is_named() -> None:
    assert verdict.left_behind(REST, REST) == []
    assert verdict.left_behind(REST, with_gateway(descriptors=29, threads=1, mib=62.9)) == []
    assert verdict.left_behind(REST, with_gateway(descriptors=31)) == [
        "gateway: 31 descriptors in the place of 30"
    ]
    assert verdict.left_behind(REST, with_gateway(threads=3)) == [
        "gateway: 3 threads in the place of 2"
    ]
    assert verdict.left_behind(REST, with_gateway(mib=63.1)) == [
        "gateway: 63.1 MiB in the place of 60.0"
    ]
    assert verdict.left_behind(REST, replace(REST, num_keys=3)) == ["3 keys in the place of 2"]
    assert verdict.left_behind(REST, replace(REST, num_keys=3, num_lasting=3)) == [
        "3 keys in the place of 2",
        "3 keys without a time to live in the place of 2",
    ]


def test_what_grows_under_load_is_named() -> None:
    flat = [with_gateway(mib=mib) for mib in (60, 90, 60, 61, 61, 60, 62, 20, 62)]
    assert verdict.growth(flat) == []
    rising = [with_gateway(mib=60 + hour) for hour in range(9)]
    assert verdict.growth(rising) == ["gateway: 61.0 MiB in the first third, 67.0 in the last"]
    small = [replace(REST, held={"valkey": Held(mib, 40, 6)}) for mib in (4.0, 4.5, 4.9)]
    assert verdict.growth(small) == []  # an allocator's
    assert verdict.growth(flat[:2]) == ["too few samples"]
