"""Each format is known by its first line; what is wrong is said with the line's number."""

import json
from pathlib import Path

import pytest

from scheduler.simulation.errors import InputError
from scheduler.simulation.workload import Arrival
from scheduler.simulation.workload_files import read_workload


def read(folder: Path, *lines: str) -> list[Arrival]:
    file = folder / "workload"
    file.write_text("\n".join(lines) + "\n")
    return read_workload(str(file))


def test_azure(tmp_path: Path) -> None:
    first, second = read(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
    )
    assert (first.at, first.prompt_tokens, first.output_tokens) == (0.0, 374, 44)
    assert second.at == pytest.approx(4.314579, abs=1e-6)


def test_mooncake(tmp_path: Path) -> None:
    [arrival] = read(
        tmp_path,
        '{"timestamp": 2500, "input_length": 600, "output_length": 7, "hash_ids": [0, 14]}',
    )
    assert arrival == Arrival(2.5, 600, 7, hashes=(0, 14))


def test_tenants(tmp_path: Path) -> None:
    late, early = (
        "2.5,tenant-1,256,255,0.9,12.5",
        "0.5,tenant-0,13,199,1.1,9.4",
    )
    head = "arrival_s,tenant,prompt_tokens,output_tokens,measured_ttft_s,measured_latency_s"
    assert read(tmp_path, head, late, early) == [
        Arrival(0.5, 13, 199, "tenant-0"),
        Arrival(2.5, 256, 255, "tenant-1"),
    ]


def entry(at: float, came: object = (), ended: object = ()) -> str:
    return json.dumps({"at": at, "worker": "w", "step": 1, "came": came, "ended": ended})


def test_a_recorded_timeline(tmp_path: Path) -> None:
    arrivals = read(
        tmp_path,
        entry(100.0, [["a.0", "alice", 5, 64, 0], ["b.0", "bob", 9, 32, 2]]),
        entry(101.5, [["c.0", "bob", 3, 16, 0], ["d.0", "bob", 3, 16, 0]]),
        entry(102.0, [["a.0", "alice", 5, 64, 0]]),  # told again by a new leader
        entry(103.0, [], [["a.0", 7, "stop"], ["b.0", 32, "length"], ["d.0", 0, "cancelled"]]),
    )
    assert arrivals == [
        Arrival(0.0, 5, 7, "alice", 0, max_tokens=64, name="a.0"),
        Arrival(0.0, 9, 32, "bob", 2, max_tokens=32, name="b.0"),
        Arrival(1.5, 3, 16, "bob", 0, max_tokens=16, name="c.0"),  # its end was not recorded
    ]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["what,is,this"], "its first line is of no format"),
        (["{}"], "its first line is of no format"),
        (["{'a': 1}"], "line 1: not JSON"),
        (["[1]"], "its first line is of no format"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens"], "there is no request in it"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "today,1,1"], "line 2: Invalid isoformat"),
        (["arrival_s,tenant,prompt_tokens,output_tokens", "1.0,a,5,x"], "line 2: invalid literal"),
        (["arrival_s,tenant,prompt_tokens,output_tokens", "1.0,a,0,1"], "line 2: a request has"),
        (["arrival_s,tenant,prompt_tokens,output_tokens", "nan,a,5,1"], "line 2: a time"),
        (["arrival_s,prompt_tokens,output_tokens", "1.0,5,1"], "line 2: no 'tenant'"),
        (['{"timestamp": 0, "input_length": 5, "output_length": 1}'], "line 1: no 'hash_ids'"),
        (
            ['{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]}'],
            "line 1: hash_ids do not cover",
        ),
        ([entry(1.0, [["a.0", "alice", 5]])], "line 1: not an entry of a timeline"),
        ([entry(1.0, [["a.0", "alice", "5", 6, 0]])], "line 1: not an entry of a timeline"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, lines: list[str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        read(tmp_path, *lines)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_workload(str(tmp_path / "none"))
