"""What the command prints, and how it refuses."""

import json
from pathlib import Path

import pytest

from common.config import SettingError
from scheduler.simulation.__main__ import main
from scheduler.simulation.options import read_case, read_command

FEW = ["--requests", "5", "--rate", "20"]


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FEW, "--by-tenant", "--timeline", "--tenants", "alice=1,bob=1"]) == 0
    printed = capsys.readouterr().out
    assert "requests that came" in printed
    assert "TTFT p99, ms" in printed
    assert "good requests/s" not in printed
    assert "alice" in printed
    assert "w0, iterations 1 to 80" in printed


def test_goals_are_shown_where_they_are_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FEW, "--ttft-goal", "0.5"]) == 0
    assert "good requests/s" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FEW, "--json"]) == 0
    [case] = json.loads(capsys.readouterr().out)["cases"]
    assert (case["case"], case["requests"], case["ended"]) == ("simulated", 5, 5)
    assert set(case["ttft_seconds"]) == {"mean", "p50", "p90", "p99", "max"}
    assert case["tenants"]["anonymous"]["ended"] == 5


def test_each_request_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--requests", "2", "--rate", "1", "--arrivals", "even", "--tenants", "alice=1"]
    arguments += ["--prompt-tokens", "7", "--output-tokens", "3"]
    assert main([*arguments, "--json", "--by-request"]) == 0
    [case] = json.loads(capsys.readouterr().out)["cases"]
    assert case["each_request"] == [
        ["1", "alice", *(pytest.approx(at) for at in (1.0, 1.01, 1.03)), 7, 3],
        ["2", "alice", *(pytest.approx(at) for at in (2.0, 2.01, 2.03)), 7, 3],
    ]


def test_cases_share_what_they_do_not_change(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--case", "a:policy=fcfs", "--case", "b:policy=fair,step-ms=20", "--step-ms", "5"]
    assert main([*FEW, *arguments, "--json"]) == 0
    a, b = json.loads(capsys.readouterr().out)["cases"]
    assert (a["case"], b["case"]) == ("a", "b")
    assert a["itl_seconds"]["p50"] == pytest.approx(0.005)
    assert b["itl_seconds"]["p50"] == pytest.approx(0.020)
    assert main([*FEW, *arguments]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["a", "b"]


def test_a_case_may_hold_commas() -> None:
    assert read_case("x:tenant-weights=a=2,b=3,policy=fair") == (
        "x",
        {"tenant_weights": "a=2,b=3", "policy": "fair"},
    )


@pytest.mark.parametrize("text", ["policy=fair", ":policy=fair", "x:polcy=fair", "x:fair"])
def test_a_case_that_is_none(text: str) -> None:
    with pytest.raises(SettingError, match="--case"):
        read_case(text)


def test_settings_come_from_the_environment_too() -> None:
    command = read_command([], {"CHAIRLIFT_POLICY": "fair", "CHAIRLIFT_BLOCK_SIZE": "512"})
    [options] = command.cases.values()
    assert (options.scheduler.policy, options.worker.block_size) == ("fair", 512)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--policy", "best"], "--policy: 'best' is none of"),
        (["--rate", "0"], "--rate: 0 is below"),
        (["--polcy", "fair"], "unrecognized arguments"),
        (["--workload", "none.csv"], "cannot read none.csv"),
        (["--cost", "fast"], "--cost: 'fast'"),
        (["--tenants", "alice=x"], "'alice=x' is not NAME=SHARE"),
        (["--output-tokens", "0"], "lengths '0' are none of"),
        (["--case", "a:policy=best"], "--policy: 'best'"),
        (["--case", "a:policy=fair", "--case", "a:"], "two have the same name"),
        (["--kv", "reserved", "--prefix-cache", "on"], "kv=reserved"),
        (["--priorities", "high=1"], "'high' is no priority"),
        (["--calibrate", "none.jsonl"], "none.jsonl: not a timeline"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        raise SystemExit(main(arguments))
    assert exit_info.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("chairlift simulate: ")
    assert why in printed.err
    assert printed.err.count("\n") == 1


def test_a_recorded_run_under_another_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """alice's ten come first; under policy=fair bob does not wait for all of them."""
    came = [[f"a.{i}", "alice", 64, 32, 0] for i in range(10)] + [["b.0", "bob", 64, 32, 0]]
    ended = [[name, 16, "stop"] for name, *_ in came]
    entries = [{"at": 5.0, "came": came, "ended": []}, {"at": 9.0, "came": [], "ended": ended}]
    file = tmp_path / "recorded.jsonl"
    file.write_text("\n".join(map(json.dumps, entries)))
    arguments = ["--workload", str(file), "--max-rows", "2", "--json"]
    assert main([*arguments, "--case", "fcfs:policy=fcfs", "--case", "fair:policy=fair"]) == 0
    fcfs, fair = json.loads(capsys.readouterr().out)["cases"]
    assert fcfs["output_tokens"] == fair["output_tokens"] == 11 * 16
    waits = [case["tenants"]["bob"]["ttft_seconds"]["max"] for case in (fcfs, fair)]
    assert waits[1] < waits[0] / 2


def test_calibration_prints_a_model_that_the_simulator_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [
        {
            "worker": "w",
            "step": i,
            "admitted": [[f"r{i}", 0]],
            "chunks": [[f"r{i}", 2 + i % 7]],
            "seconds": [[i, 0.01 + 0.001 * (2 + i % 7)]],
        }
        for i in range(1, 30)
    ]
    recorded, model = tmp_path / "timeline.jsonl", tmp_path / "cost.json"
    recorded.write_text("\n".join(map(json.dumps, entries)))
    assert main(["--calibrate", str(recorded)]) == 0
    model.write_text(capsys.readouterr().out)
    assert main([*FEW, "--cost", str(model)]) == 0
