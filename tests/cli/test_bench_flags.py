"""Flags become a plan; what is bad is one line and exit status 2."""

from pathlib import Path

import pytest

from cli.bench.flags import parse
from cli.bench.options import Options, Sweep


def test_nothing_given_is_what_options_are_by_themselves() -> None:
    plan = parse([])
    assert plan.options == Options()
    assert plan.servers == (("127.0.0.1:8000", "http://127.0.0.1:8000"),)
    assert (plan.sweep, plan.repeats, plan.as_json, plan.plot) == (None, 1, False, "")


def test_flags() -> None:
    plan = parse(["--vocabulary", "3:9", "--no-ignore-eos", "--rate", "2.5", "--json"])
    assert plan.options == Options(vocabulary=(3, 9), ignore_eos=False, rate=2.5)
    assert plan.as_json
    lengths = ["--prompt-tokens", "uniform:5:9", "--output-tokens", "7"]
    assert parse(lengths).options == Options(prompt_tokens="uniform:5:9", output_tokens=7)


def test_servers_have_names() -> None:
    urls = ["a=http://x:1", "http://y:2/v1?a=b", "https://z"]
    flags = [flag for url in urls for flag in ("--url", url)]
    assert parse(flags).servers == (
        ("a", "http://x:1"),
        ("y:2", "http://y:2/v1?a=b"),
        ("z:443", "https://z"),
    )


def test_sweeps() -> None:
    assert parse(["--sweep", "rate=1,2.5"]).sweep == Sweep("rate", (1.0, 2.5))
    assert parse(["--sweep", "concurrency=1,16"]).sweep == Sweep("concurrency", (1, 16))
    assert parse(["--sweep", "rate=1,2", "--gamma-shape", "0.5"]).options.gamma_shape == 0.5
    assert parse(["--trace", "f", "--sweep", "rate-scale=1,2"]).sweep == Sweep("rate_scale", (1, 2))


def test_how_many_requests_there_are() -> None:
    assert Options().count == 64
    assert Options(requests=3, duration=9).count == 3
    assert Options(duration=9).count is None
    assert Options(duration=9).is_endless
    assert not Options(duration=9, rate=1).is_endless
    assert Options(trace="f").count is None
    assert not Options(trace="f").is_endless


def test_what_is_asked_in_words() -> None:
    assert not Options().is_text
    assert Options(text=True).is_text
    assert Options(endpoint="chat").is_text
    assert Options(turns=2).is_text  # answers come as text


def test_how_many_run_at_one_time() -> None:
    assert Options().limit == 16
    assert Options(rate=1).limit is None
    assert Options(trace="f").limit is None
    assert Options(rate=1, concurrency=3).limit == 3


NUMBERS = {
    "--requests": "0 -1 x 1.5",
    "--concurrency": "0 x",
    "--duration": "0 -1 nan inf x",
    "--rate": "0 -1 nan inf x",
    "--gamma-shape": "0 x",
    "--rate-scale": "0 nan",
    "--warmup": "-1 x",
    "--timeout-seconds": "0 -1 x",
    "--prompt-tokens": "0 x uniform:9:5 lognormal:0:1",
    "--output-tokens": "0 -3 uniform:1",
    "--prefix-tokens": "-1 x",
    "--prefixes": "0",
    "--turns": "0",
    "--endpoint": "x",
    "--vocabulary": "9:3 3 a:b 3: :3 -1:3",
    "--seed": "x",
    "--temperature": "-1 nan x",
    "--ttft-ms": "0 x",
    "--tpot-ms": "0",
    "--itl-ms": "-1",
    "--e2e-ms": "nan",
    "--repeats": "0 x",
    "--sweep": "x rate rate= rate=0 rate=1,x rate=1,1 seed=1,2 concurrency=1.5",
    "--url": "x ftp://x http:// http://x:99999 http://[::1 a=b=c",
    "--plot": "/nowhere/plot.svg /",
    "--unknown": "1",
}


def refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The line that says why."""
    with pytest.raises(SystemExit) as raised:
        parse(flags)
    assert raised.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("chairlift bench: ")
    return line


@pytest.mark.parametrize(
    ("flag", "value"),
    [(flag, value) for flag, values in NUMBERS.items() for value in values.split()],
)
def test_bad_values_are_one_line(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert flag in refused([f"{flag}={value}"], capsys)


def test_what_no_header_may_hold(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(["--api-key", "a\r\nX: secret"], capsys)
    assert "--api-key" in line
    assert "secret" not in line


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--trace f --rate 3", "--trace says what comes: --rate cannot"),
        ("--trace f --prompt-tokens 3", "--prompt-tokens cannot"),
        ("--trace f --turns 3", "--turns cannot"),
        ("--trace f --sweep rate=1,2", "--rate cannot"),
        ("--rate 3 --sweep rate=1,2", "--rate is swept and given"),
        ("--rate-scale 3", "--rate-scale needs --trace"),
        ("--sweep rate-scale=1,2", "--rate-scale needs --trace"),
        ("--gamma-shape 3", "--gamma-shape needs --rate"),
        ("--prefixes 3", "--prefixes needs --prefix-tokens"),
        ("--url a=http://x --url a=http://y", "two servers are called a"),
        ("--url http://x:1 --url http://x:1/v1", "two servers are called x:1"),
    ],
)
def test_flags_that_contradict_each_other(
    flags: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why in refused(flags.split(), capsys)


def test_a_plot_is_tried_before_anything_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "plot.svg"
    assert parse(["--plot", str(file)]).plot == str(file)
    assert file.exists()
