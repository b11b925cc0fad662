"""`./chairlift queue`: what waits and runs, and why; and how to steer it.

It reads the hash `status`, which the leading scheduler writes twice a second, and asks for changes
through the stream `control`: all of it could be done with redis-cli.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from cli.queue_table import describe, describe_steps
from cli.queue_why import explain, find, told_by_journal
from common.bus import BusError, Lease, OperatorBus
from common.config import GatewaySettings, SettingError, environment, values
from common.messages import (
    Control,
    ControlKind,
    RequestId,
    SubmissionId,
    request_id,
    submission_of,
)
from common.redis_bus import RedisBus

PROGRAM = "chairlift queue"
CONNECT_SECONDS = 5.0
SHARED = ("redis_url", "data_dir", "pool")  # variables that services read too
BEAT_SECONDS = 0.6  # in which a leader raises its beat at least once

TARGETED = {
    "cancel": ControlKind.CANCEL,
    "hold": ControlKind.HOLD,
    "release": ControlKind.RELEASE,
    "priority": ControlKind.PRIORITY,
    "drain": ControlKind.DRAIN,
    "weight": ControlKind.WEIGHT,
}
ALLOWED = {  # targets, where they are not requests or a tenant
    ControlKind.RELEASE: {"request", "tenant", "worker"},
    ControlKind.DRAIN: {"tenant", "worker"},
    ControlKind.WEIGHT: {"tenant"},
}
NEW = 32  # newest entries of `requests` in which one is looked for that no scheduler has read
SHOWN_STEPS = 20
ALL = 1 << 30


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
    why = commands.add_parser("why", help="explain in a sentence why a request waits")
    why.add_argument("target", help="a request, or a submission: all of its choices")
    timeline = commands.add_parser("timeline", help="the last steps, and who took part in them")
    timeline.add_argument("--json", action="store_true", help="a line of JSON for each, to replay")
    timeline.add_argument(
        "--last", type=count, help=f"so many; default: {SHOWN_STEPS}, with --json all"
    )
    for name, text, target in COMMANDS:
        command = commands.add_parser(name, help=text)
        command.add_argument("target", help=target)
        if name == "priority":
            command.add_argument("priority", type=int)
        if name == "weight":
            command.add_argument("weight", type=number)
    return parser


REQUESTS = "a request, a submission: all of its choices, or tenant:NAME: all that are open"
COMMANDS = (
    ("cancel", "take requests out", REQUESTS),
    ("hold", "pass them over until they are released", REQUESTS),
    ("release", "let held ones go; end a drain", f"{REQUESTS}; or worker:NAME"),
    ("priority", "change their priority: smaller is more urgent", REQUESTS),
    ("drain", "start nothing new of a tenant, or on a worker", "tenant:NAME or worker:NAME"),
    ("weight", "a tenant's share under policy=fair", "tenant:NAME"),
)


def count(text: str) -> int:
    """At least 1."""
    if (value := int(text)) < 1:
        raise ValueError
    return value


def number(text: str) -> float:
    """Above 0."""
    if not 0 < (value := float(text)) < float("inf"):
        raise ValueError
    return value


async def _run(options: argparse.Namespace) -> int:
    bus = RedisBus(_url(options), options.pool)
    try:
        await bus.connect(CONNECT_SECONDS)
        return await _do(bus, options)
    finally:
        await bus.aclose()


async def _do(bus: OperatorBus, options: argparse.Namespace) -> int:
    match options.command:
        case "timeline":
            return await _timeline(bus, options.last, as_json=options.json)
        case "why":
            return await _why(bus, options.target)
        case str(command) if kind := TARGETED.get(command):
            return await _ask(bus, kind, options)
    return await _list(bus, as_json=getattr(options, "json", False))


def _url(options: argparse.Namespace) -> str:
    """As told, or as `./chairlift up` left it in the data directory."""
    if options.redis_url:
        return str(options.redis_url)
    note = Path(options.data_dir) / "redis-url"
    if not note.exists():
        raise BusError(f"no --redis-url, and no `./chairlift up` is running on {options.data_dir}")
    return note.read_text().strip()


async def _ask(bus: OperatorBus, kind: ControlKind, options: argparse.Namespace) -> int:
    priority, weight = getattr(options, "priority", 0), getattr(options, "weight", 1.0)
    control = Control(kind, options.target, priority=priority, weight=weight)
    prefix = control.target.partition(":")[0]
    prefix = prefix if prefix in {"tenant", "worker"} and ":" in control.target else "request"
    allowed = ALLOWED.get(kind, {"request", "tenant"})
    if prefix not in allowed:
        raise BusError(f"{kind} takes {' or '.join(sorted(allowed))}, not {options.target!r}")
    await bus.control(control)
    print(f"asked: {options.command} {options.target}")
    return 0


async def _timeline(bus: OperatorBus, last: int | None, *, as_json: bool) -> int:
    entries = await bus.recent("timeline", last or (ALL if as_json else SHOWN_STEPS))
    if as_json:
        for _, fields in entries:
            sys.stdout.buffer.write(fields[b"json"] + b"\n")
        sys.stdout.buffer.flush()
    else:
        print("\n".join(describe_steps([(name, orjson.loads(f[b"json"])) for name, f in entries])))
    return 0


async def _why(bus: OperatorBus, target: str) -> int:
    before = await bus.lease()
    status = await _status(bus)
    lines = []
    for row in find(status, target):
        journal = await bus.journal(row["request"])  # it may have ended since that was written
        ended = told_by_journal(row["request"], journal, is_accepted=True)
        lines.append(ended if journal.end else explain(status, row))
    if lines:
        print("\n".join(lines))
        return await _check_leader(bus, before)
    return await _why_unlisted(bus, target)


async def _why_unlisted(bus: OperatorBus, target: str) -> int:
    request, journal = RequestId(target), await bus.journal(RequestId(target))
    if journal.head is None:
        request = request_id(SubmissionId(target), 0)
        journal = await bus.journal(request)
    if journal.head is not None:
        print(told_by_journal(request, journal, is_accepted=True))
        return 0
    newest = await bus.recent("requests", NEW)
    ids = {fields.get(b"id", b"").decode(errors="replace") for _, fields in newest}
    is_accepted = bool(ids & {target, submission_of(RequestId(target))})
    print(told_by_journal(target, journal, is_accepted=is_accepted))
    return 0 if is_accepted else 1


async def _status(bus: OperatorBus) -> dict[str, Any]:
    return {name: orjson.loads(value) for name, value in (await bus.status_fields()).items()}


async def _check_leader(bus: OperatorBus, before: Lease) -> int:
    """1, and a word about it, where nobody has renewed the lease meanwhile."""
    await asyncio.sleep(BEAT_SECONDS)
    if await bus.lease() == before:
        print("\nNo scheduler leads at the moment: what is shown is old.")
        return 1
    return 0


async def _list(bus: OperatorBus, *, as_json: bool) -> int:
    before = await bus.lease()
    status = await _status(bus)
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(status, option=orjson.OPT_INDENT_2) + b"\n")
        return 0
    print("\n".join(describe(status)))
    return await _check_leader(bus, before)
