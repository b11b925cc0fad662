"""Workloads from files, whose format their first line tells.

- Azure's LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.
- Mooncake's traces: JSON lines with timestamp (ms), input_length, output_length, hash_ids.
- CSV with arrival_s, tenant, prompt_tokens, output_tokens; other columns are passed over.
- Our own timeline, as `./chairlift queue timeline --json` prints it.
"""

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from scheduler.simulation.errors import InputError
from scheduler.simulation.workload import HASHED_TOKENS, Arrival

Row = Mapping[str, Any]


def read_workload(path: str) -> list[Arrival]:
    """By time of arrival, the first at its own time or at 0; raises InputError, naming the line."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    found = _arrivals(path, lines)
    if not found:
        raise InputError(f"{path}: there is no request in it")
    return sorted(found, key=lambda arrival: arrival.at)


def _arrivals(path: str, lines: list[str]) -> list[Arrival]:
    head = lines[0] if lines else ""
    if head.startswith("{"):
        rows = _json_rows(path, lines)
        first = next(iter(rows))
        if "input_length" in first:
            return _each(path, rows, _mooncake, 1)
        if "came" in first or "chunks" in first:
            return _recorded(path, rows)
    elif {"ContextTokens", "GeneratedTokens"} <= set(head.split(",")):
        return _from_zero(_each(path, list(csv.DictReader(lines)), _azure, 2))
    elif {"arrival_s", "prompt_tokens"} <= set(head.split(",")):
        return _each(path, list(csv.DictReader(lines)), _tenants, 2)
    raise InputError(f"{path}: its first line is of no format that is known")


def _json_rows(path: str, lines: list[str]) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            raise InputError(f"{path}, line {number}: not JSON") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: not a JSON object")
        rows.append(row)
    return rows


def _each(
    path: str, rows: Iterable[Row], parse: Callable[[Row], Arrival], first_line: int
) -> list[Arrival]:
    arrivals = []
    for number, row in enumerate(rows, first_line):
        try:
            arrivals.append(_checked(parse(row)))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else error
            raise InputError(f"{path}, line {number}: {what}") from None
    return arrivals


def _checked(arrival: Arrival) -> Arrival:
    if arrival.prompt_tokens < 1 or arrival.output_tokens < 1:
        raise ValueError("a request has at least one token of prompt and of answer")
    if arrival.hashes and len(arrival.hashes) * HASHED_TOKENS < arrival.prompt_tokens:
        raise ValueError("hash_ids do not cover the prompt")
    if not arrival.at >= 0:
        raise ValueError("a time below 0")
    return arrival


def _azure(row: Row) -> Arrival:
    at = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
    return Arrival(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _from_zero(arrivals: list[Arrival]) -> list[Arrival]:
    start = min((arrival.at for arrival in arrivals), default=0.0)
    for arrival in arrivals:
        arrival.at -= start
    return arrivals


def _mooncake(row: Row) -> Arrival:
    hashes = tuple(int(h) for h in row["hash_ids"])
    return Arrival(
        row["timestamp"] / 1e3, int(row["input_length"]), int(row["output_length"]), hashes=hashes
    )


def _tenants(row: Row) -> Arrival:
    return Arrival(
        float(row["arrival_s"]),
        int(row["prompt_tokens"]),
        int(row["output_tokens"]),
        row["tenant"],
    )


def _recorded(path: str, rows: Iterable[Row]) -> list[Arrival]:
    """Who came, with the answers as long as they became.

    A new leader tells again who had come. One whose end is not in the recording is taken to use
    its max_tokens; one that ended before its first token leaves nothing to replay.
    """
    came: dict[str, Arrival] = {}
    for number, row in enumerate(rows, 1):
        try:
            for told in row.get("came", ()):
                came.setdefault(told[0], _came(float(row["at"]), *told))
            for name, output_tokens, _ in row.get("ended", ()):
                if name in came:
                    came[name].output_tokens = output_tokens
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}, line {number}: not an entry of a timeline: {error}"
            ) from None
    return _from_zero([arrival for arrival in came.values() if arrival.output_tokens])


def _came(
    at: float, name: str, tenant: str, prompt_tokens: int, max_tokens: int, priority: int
) -> Arrival:
    return _checked(
        Arrival(at, prompt_tokens, max_tokens, tenant, priority, max_tokens=max_tokens, name=name)
    )
