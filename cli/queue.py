"""`./chairlift queue`: what waits and runs, and why; cancel, hold, release, change priority.

It reads the hash `status`, which the leading scheduler writes twice a second, and asks for changes
through the stream `control`: all of it could be done with redis-cli.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from common.bus import BusError, OperatorBus
from common.config import GatewaySettings, SettingError, environment, values
from common.messages import Control, ControlKind
from common.redis_bus import RedisBus

PROGRAM = "chairlift queue"
CONNECT_SECONDS = 5.0
SHARED = ("redis_url", "data_dir", "pool")  # variables that services read too
BEAT_SECONDS = 0.6  # in which a leader raises its beat at least once

WHY = {
    None: "runs",
    "new": "came after the last step was planned",
    "held": "is held: ./chairlift queue release lets it go",
    "behind": "others before it wait",
    "promised": "stepped back, and tokens of it are still under way",
    "shortage": "rows that run lack cache blocks, so nobody is admitted",
    "closed": "the batch takes nobody now",
    "no_seat": "all seats are taken (--max-running)",
    "no_tokens": "the step's token budget is used up (--max-step-tokens)",
    "no_blocks": "too few cache blocks are free",
    "no_worker": "no worker is there that can hold it",
    "suspect": "workers died with it: it waits to run alone",
}
TARGETED = {
    "cancel": ControlKind.CANCEL,
    "hold": ControlKind.HOLD,
    "release": ControlKind.RELEASE,
    "priority": ControlKind.PRIORITY,
}


def main(arguments: Sequence[str]) -> int:
    try:
        return asyncio.run(_run(_parser().parse_args(arguments)))
    except (BusError, SettingError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__, allow_abbrev=False)
    shared = [spec for spec in fields(GatewaySettings) if spec.name in SHARED]
    given = values(shared, {}, environment())
    parser.add_argument(
        "--redis-url",
        default=given.get("redis_url", ""),
        help="the server; default: the embedded one of --data-dir",
    )
    parser.add_argument("--data-dir", default=given.get("data_dir", "data"))
    parser.add_argument("--pool", default=given.get("pool", "default"))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    listing = commands.add_parser("list", help="what waits and runs (this is the default)")
    listing.add_argument("--json", action="store_true", help="one JSON object")
    for name, text in (
        ("cancel", "take a request out"),
        ("hold", "pass it over until it is released"),
        ("release", "let a held one go"),
        ("priority", "change its priority: smaller is more urgent"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("target", help="a request, or a submission: all of its choices")
        if name == "priority":
            command.add_argument("priority", type=int)
    return parser


async def _run(options: argparse.Namespace) -> int:
    bus = RedisBus(_url(options), options.pool)
    try:
        await bus.connect(CONNECT_SECONDS)
        if kind := TARGETED.get(options.command):
            priority = getattr(options, "priority", 0)
            await bus.control(Control(kind, options.target, priority=priority))
            print(f"asked: {options.command} {options.target}")
            return 0
        return await _list(bus, as_json=getattr(options, "json", False))
    finally:
        await bus.aclose()


def _url(options: argparse.Namespace) -> str:
    """As told, or as `./chairlift up` left it in the data directory."""
    if options.redis_url:
        return str(options.redis_url)
    note = Path(options.data_dir) / "redis-url"
    if not note.exists():
        raise BusError(f"no --redis-url, and no `./chairlift up` is running on {options.data_dir}")
    return note.read_text().strip()


async def _list(bus: OperatorBus, *, as_json: bool) -> int:
    before = await bus.lease()
    status = {name: orjson.loads(value) for name, value in (await bus.status_fields()).items()}
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(status, option=orjson.OPT_INDENT_2) + b"\n")
        return 0
    print("\n".join(describe(status)))
    await asyncio.sleep(BEAT_SECONDS)
    if await bus.lease() == before:
        print("\nNo scheduler leads at the moment: what is shown is old.")
        return 1
    return 0


def describe(status: dict[str, Any]) -> list[str]:
    """The lines of the listing, from the fields of `status`."""
    summary = status.get("summary", {})
    lines = [
        f"{summary.get('num_running', 0)} running, {summary.get('num_waiting', 0)} waiting, "
        f"{summary.get('tokens_per_second', 0):g} tokens/s, step {summary.get('steps', 0)} "
        f"of epoch {summary.get('epoch', 0)}"
    ]
    workers = [
        (
            worker["worker"],
            worker["device"],
            worker["running"],
            worker["waiting"],
            f"{worker['free_blocks']}/{worker['num_blocks']}",
        )
        for worker in status.get("workers", [])
    ]
    lines += ["", *table(("WORKER", "DEVICE", "RUNNING", "WAITING", "FREE BLOCKS"), workers)]
    requests = [
        (
            row["request"],
            "runs" if row.get("state") == "RUNNING" else "waits",
            row.get("tenant", ""),
            row.get("prompt", ""),
            row.get("output", ""),
            row.get("blocks", ""),
            WHY.get(row["reason"], row["reason"]),
        )
        for row in [*status.get("running", []), *status.get("waiting", [])]
    ]
    heads = ("REQUEST", "STATE", "TENANT", "PROMPT", "OUTPUT", "BLOCKS", "WHY")
    return [*lines, "", *table(heads, requests)]


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns as wide as they must be."""
    cells = [list(heads), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
