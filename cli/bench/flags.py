"""The command line of `./chairlift bench`: flags to a plan, or one line that says what is wrong."""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from cli.bench.definitions import definitions
from cli.bench.http import Server
from cli.bench.options import Options, Plan, Sweep
from common.lengths import FORMS, lengths

DESCRIPTION = """\
Put load on OpenAI-compatible servers and measure them. docs/bench.md has examples.

With --rate or --trace, requests arrive when it is time, and their times count from the arrival,
also while they wait for one of --concurrency places: a slow server cannot slow the clock.
"""
MADE = ("prompt_tokens", "output_tokens", "prefix_tokens", "prefixes", "turns")
EXCLUDED = {"trace": ("rate", "gamma_shape", *MADE)}  # by the first
NEEDED = {"gamma_shape": "rate", "rate_scale": "trace", "prefixes": "prefix_tokens"}
T = TypeVar("T", int, float)


def parse(arguments: Sequence[str]) -> Plan:
    """Exits with code 2 and one line where a value is bad."""
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    if wrong := _conflict(given):
        parser.error(wrong)
    plan = {
        name: given.pop(name) for name in ("sweep", "repeats", "as_json", "plot") if name in given
    }
    servers = tuple(given.pop("url", ())) or (_server(Options.url),)
    if twice := {name for name, _ in servers if [n for n, _ in servers].count(name) > 1}:
        parser.error(f"two servers are called {twice.pop()}: say --url NAME=URL")
    return Plan(Options(**given), servers, **plan)


def _conflict(given: Mapping[str, Any]) -> str:
    """What is wrong with flags that are right alone; empty: nothing."""
    swept = given["sweep"].name if "sweep" in given else ""
    present = {*given, swept}
    if swept in given:
        return f"{flag(swept)} is swept and given"
    for first, others in EXCLUDED.items():
        for other in others:
            if {first, other} <= present:
                return f"{flag(first)} says what comes: {flag(other)} cannot be given beside it"
    for name, needed in NEEDED.items():
        if name in present and needed not in present:
            return f"{flag(name)} needs {flag(needed)}"
    return ""


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="chairlift bench",
        description=DESCRIPTION,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=28, width=100
        ),
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,  # so that it is known what was given
    )
    _add_load(parser)
    _add_requests(parser)
    _add_goals(parser)
    _add_plan(parser)
    return parser


def _add(group: "argparse._ArgumentGroup", name: str, text: str, **more: Any) -> None:
    default = {spec.name: spec.default for spec in fields(Options)}[name]
    if default not in {None, ""} and "action" not in more:
        shown = ":".join(map(str, default)) if isinstance(default, tuple) else default
        text = f"{text} (default: {shown})"
    if not {"action", "choices", "metavar"} & more.keys():
        more["metavar"] = METAVARS.get(more.get("type"), "TEXT")
    group.add_argument(flag(name), help=text, **more)


def _add_load(parser: argparse.ArgumentParser) -> None:
    add = partial(_add, parser.add_argument_group("load"))
    add(
        "concurrency",
        "requests at one time; 16, or without limit where they arrive",
        type=count,
    )
    add("requests", "how many; 64, all of the trace, or any number in --duration", type=count)
    add("duration", "seconds in which requests may start", type=above_zero)
    add("rate", "arrivals a second, at random; else as places become free", type=above_zero)
    add(
        "gamma_shape",
        "of the gaps between arrivals: 1 is Poisson, less comes in bursts, more is even",
        type=above_zero,
    )
    add("trace", "a file that says what comes when: docs/bench.md has formats", metavar="FILE")
    add("rate_scale", "a trace runs so many times as fast", type=above_zero)
    add("warmup", "requests before the ones that count", type=natural)
    add("timeout_seconds", "for one request", type=above_zero)


def _add_requests(parser: argparse.ArgumentParser) -> None:
    add = partial(_add, parser.add_argument_group("requests"))
    add(
        "prompt_tokens",
        f"{FORMS}: exact for token ids, about so for words",
        type=length,
        metavar="LENGTH",
    )
    add("output_tokens", "of an answer, likewise", type=length, metavar="LENGTH")
    add("prefix_tokens", "more, before the prompt, that prompts share", type=natural)
    add("prefixes", "different ones; each prompt begins with one of them", type=count)
    add("turns", "of a conversation, which grows by the answer that came", type=count)
    add("model", "else the first that the server names")
    add("endpoint", "what is called", choices=("completions", "chat"))
    add(
        "text",
        "prompts of words, not of token ids; always so for chat and turns",
        action="store_true",
    )
    add("vocabulary", "token ids of prompts", type=id_range, metavar="START:STOP")
    add("api_key", "sent as a bearer token", type=header)
    add("seed", "of prompts, lengths and arrivals", type=whole)
    add("temperature", "of sampling", type=not_negative)
    add("ignore_eos", "go on after an end token", action=argparse.BooleanOptionalAction)


def _add_goals(parser: argparse.ArgumentParser) -> None:
    add = partial(
        _add, parser.add_argument_group("goodput: a request is good if it met all that are given")
    )
    add("ttft_ms", "to the first token", type=above_zero)
    add("tpot_ms", "for each further token, on average", type=above_zero)
    add("itl_ms", "between two frames, at most", type=above_zero)
    add("e2e_ms", "to the end", type=above_zero)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("servers, runs, output")
    add = group.add_argument
    add(
        "--url",
        action="append",
        type=_server,
        metavar="[NAME=]URL",
        help=f"of a server (default: {Options.url}); several take turns",
    )
    add(
        "--sweep",
        type=sweep,
        metavar="NAME=A,B,…",
        help="one line each for values of rate, concurrency or rate-scale",
    )
    add(
        "--repeats", type=count, metavar="N", help="of each run; shown are the median and the range"
    )
    add("--json", action="store_true", dest="as_json", help="print one object with all raw figures")
    add(
        "--plot",
        type=writable,
        metavar="FILE.svg",
        help="draw throughput against latency, a line for each server",
    )
    add(
        "--definitions",
        action="version",
        version=definitions(),
        help="print how each figure is counted",
    )


def number(kind: Callable[[str], T], is_good: Callable[[T], bool], what: str) -> Callable[[str], T]:
    """What argparse calls; its error says what the value should be."""

    def parsed(text: str) -> T:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not is_good(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return parsed


count = number(int, lambda value: value >= 1, "a whole number from 1 on")
natural = number(int, lambda value: value >= 0, "a whole number from 0 on")
whole = number(int, lambda value: True, "a whole number")
above_zero = number(float, lambda value: 0 < value < math.inf, "a number above 0")
not_negative = number(float, lambda value: 0 <= value < math.inf, "a number from 0 on")
METAVARS: dict[Any, str] = {
    count: "N",
    natural: "N",
    whole: "N",
    above_zero: "NUMBER",
    not_negative: "NUMBER",
}
SWEPT: dict[str, Callable[[str], float]] = {
    "rate": above_zero,
    "concurrency": count,
    "rate-scale": above_zero,
}


def length(text: str) -> int | str:
    try:
        lengths(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return int(text) if text.isdecimal() else text


def id_range(text: str) -> tuple[int, int]:
    start, colon, stop = text.partition(":")
    if not (colon and start.isdecimal() and stop.isdecimal() and int(start) < int(stop)):
        raise argparse.ArgumentTypeError(f"{text!r} is not START:STOP with an id between them")
    return int(start), int(stop)


def header(text: str) -> str:
    if not text.isprintable():
        raise argparse.ArgumentTypeError("it holds what no header may hold")
    return text


def sweep(text: str) -> Sweep:
    name, _, values = text.partition("=")
    if name not in SWEPT or not values:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not one of {', '.join(SWEPT)}, as rate=1,2,4"
        )
    found = tuple(SWEPT[name](value) for value in values.split(","))
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r} has a value twice")
    return Sweep(name.replace("-", "_"), found)


def writable(text: str) -> str:
    """Before anything is measured, not after it."""
    try:
        with Path(text).open("a"):
            return text
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"cannot write {text}: {error}") from None


def _server(text: str) -> tuple[str, str]:
    """Its name and its address."""
    name, equals, url = text.partition("=")
    if not equals or "/" in name:
        name, url = "", text
    try:
        server = Server.parse(url)
        server.host.encode("idna")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name or f"{server.host}:{server.port}", url
