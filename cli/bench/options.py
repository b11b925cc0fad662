"""What `./chairlift bench` is told."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

DESCRIPTION = """\
Put load on an OpenAI-compatible server and measure it.

With --rate, requests arrive at random (Poisson), and their times count from the arrival, also
while they wait for one of --concurrency places: a slow server cannot slow the clock.
"""


@dataclass(frozen=True)
class Options:
    url: str = "http://127.0.0.1:8000"
    concurrency: int | None = None  # None: 16, or without limit where there is a rate
    requests: int = 64
    prompt_tokens: int = 128
    output_tokens: int = 128
    rate: float | None = None  # arrivals a second; None: as places become free
    model: str = ""  # empty: the first that the server names
    endpoint: str = "completions"
    text: bool = False  # prompts are words, not token ids; always so for chat
    vocabulary: tuple[int, int] = (1000, 20_000)  # [start, stop) of the token ids of prompts
    api_key: str = ""
    seed: int = 0
    temperature: float = 0.0
    ignore_eos: bool = True
    warmup: int = 0  # requests before the ones that count
    timeout_seconds: float = 600.0  # for one request


def parse(arguments: Sequence[str]) -> tuple[Options, bool]:
    """The options, and whether JSON is wanted. Exits with code 2 where a value is bad."""
    given = vars(_parser().parse_args(arguments))
    as_json = given.pop("json")
    return Options(**given), as_json


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="chairlift bench",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    defaults = {spec.name: spec.default for spec in fields(Options)}

    def add(name: str, text: str, **more: Any) -> None:
        default = defaults[name]
        if default not in {None, ""} and "action" not in more:
            text = f"{text} (default: {default})"
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, default=default, help=text, **more)

    add("url", "of the server")
    add("requests", "how many", type=positive)
    add("concurrency", "at one time; 16, or with --rate without limit", type=positive)
    add("rate", "arrivals a second, at random; else as places become free", type=rate)
    add("prompt_tokens", "of a prompt: exact for token ids, about so for words", type=positive)
    add("output_tokens", "of an answer", type=positive)
    add("model", "else the first that the server names")
    add("endpoint", "what is called", choices=("completions", "chat"))
    add("text", "prompts of words, not of token ids; always so for chat", action="store_true")
    add("vocabulary", "token ids of prompts", type=id_range, metavar="START:STOP")
    add("api_key", "sent as a bearer token")
    add("seed", "of prompts and arrivals", type=int)
    add("temperature", "of sampling", type=float)
    add("ignore_eos", "go on after an end token", action=argparse.BooleanOptionalAction)
    add("warmup", "requests before the ones that count", type=int)
    add("timeout_seconds", "for one request", type=float)
    parser.add_argument("--json", action="store_true", help="print one object with all raw figures")
    return parser


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def rate(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def id_range(text: str) -> tuple[int, int]:
    start, _, stop = text.partition(":")
    if not int(start) < int(stop):
        raise argparse.ArgumentTypeError(f"{text} holds no id")
    return int(start), int(stop)
