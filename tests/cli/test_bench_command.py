"""`./chairlift bench` as a command: what it prints, and how it exits."""

import asyncio
import json
from pathlib import Path

import pytest

from cli.bench.definitions import definitions
from cli.bench.main import main
from tests.cli.bench_server import four_tokens, serving
from tests.cli.test_bench_load import refuse


async def run_main(*arguments: str) -> int:
    return await asyncio.to_thread(main, list(arguments))


FEW = ("--requests", "2", "--prompt-tokens", "3", "--output-tokens", "4")


async def test_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(four_tokens) as (_, url):
        assert await run_main("--url", url, *FEW, "--json", "--api-key", "secret") == 0
    printed = capsys.readouterr().out
    told = json.loads(printed)
    assert told["runs"][0]["output_tokens"] == 8
    assert told["lines"][0]["figures"]["TTFT p50, ms"]["median"] > 0
    assert "TTFT" in told["definitions"]
    assert "secret" not in printed


async def test_command_fails_if_a_request_failed(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(refuse) as (_, url):
        assert await run_main("--url", url, *FEW) == 1
    assert "failed: 2 x HTTP 429 queue_full (request 0, 1)" in capsys.readouterr().out


async def test_command_says_why_nothing_can_be_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serving(four_tokens) as (_, url):
        pass
    assert await run_main("--url", url) == 2
    assert capsys.readouterr().err.startswith("chairlift bench: 127.0.0.1:")


async def test_servers_take_turns_and_a_sweep_has_a_line_each(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "plot.svg"
    async with serving(four_tokens) as (_, a), serving(four_tokens) as (_, b):
        urls = ("--url", f"one={a}", "--url", f"two={b}")
        rest = ("--sweep", "concurrency=1,2", "--repeats", "2", "--plot", str(picture))
        assert await run_main(*urls, *FEW, *rest, "--ttft-ms", "10000") == 0
    printed = capsys.readouterr()
    progress = printed.err.splitlines()
    assert [line.split(":")[1].strip() for line in progress] == [
        f"{server}, concurrency {value}, run {run} of 2"
        for value in (1, 2)
        for run, servers in ((1, ("one", "two")), (2, ("two", "one")))
        for server in servers
    ]
    lines = printed.out.splitlines()
    assert [line.split()[:2] for line in lines[1:7]] == [
        [value, server] for value in "12" for server in ("one", "two", "two")
    ]
    assert "two / one" in lines[3]
    assert lines[1].split()[-1] == "0"  # failed
    assert "100" in lines[1].split()  # percent are good
    assert picture.read_text().startswith("<svg")


async def test_servers_without_a_sweep_stand_side_by_side(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serving(four_tokens) as (_, a), serving(refuse) as (_, b):
        assert await run_main("--url", f"one={a}", "--url", f"two={b}", *FEW) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["one", "two", "two", "/", "one"]
    assert lines[1].startswith("output tokens/s")
    assert lines[1].split()[3:] == ["-", "-"]  # nothing to compare
    assert ["failed", "of", "2", "0", "2!"] in [line.split() for line in lines]
    assert "two: failed: 2 x HTTP 429 queue_full (request 0, 1)" in lines
    assert "two: note: all figures are of the 0 requests that did not fail" in lines


async def test_each_pass_has_prompts_of_its_own_and_servers_have_the_same() -> None:
    async with serving(four_tokens) as (one, a), serving(four_tokens) as (two, b):
        urls = ("--url", f"one={a}", "--url", f"two={b}")
        assert await run_main(*urls, *FEW, "--repeats", "2", "--json") == 0
    prompts = [[tuple(body["prompt"]) for body in fake.bodies] for fake in (one, two)]
    assert sorted(prompts[0]) == sorted(prompts[1])
    assert len(set(prompts[0])) == 4


async def test_a_server_that_is_not_there_is_said_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serving(four_tokens) as (fake, a):
        async with serving(four_tokens) as (_, b):
            pass
        assert await run_main("--url", f"one={a}", "--url", f"two={b}", *FEW) == 2
    assert not fake.bodies
    printed = capsys.readouterr()
    assert not printed.out
    assert len(printed.err.splitlines()) == 1


async def test_a_trace_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(four_tokens) as (_, url):
        assert await run_main("--url", url, "--trace", "/nowhere/trace.csv") == 2
    assert capsys.readouterr().err.startswith("chairlift bench: cannot read /nowhere/trace.csv")


def test_definitions_name_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--definitions"])
    assert raised.value.code == 0
    printed = capsys.readouterr().out
    for name in ("TTFT", "ITL", "TPOT", "E2E", "output tokens/s", "goodput", "failed"):
        assert f"\n{name} " in f"\n{printed}"
    assert "(E2E - TTFT) / (tokens - 1)" in printed


def test_the_page_about_it_has_the_definitions() -> None:
    page = Path(__file__).parents[2] / "docs" / "bench.md"
    assert f"```\n{definitions()}\n```" in page.read_text()
