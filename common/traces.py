"""Requests from files, when each came and with how many tokens; the first line tells the format.

- Azure's LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.
- Mooncake's traces: JSON lines with timestamp (ms), input_length, output_length, hash_ids.
- CSV with arrival_s, tenant, prompt_tokens, output_tokens; other columns are passed over.
- Our own timeline, as `./chairlift queue timeline --json` prints it.
"""

import csv
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

HASHED_TOKENS = 512  # that one hash of a prompt stands for
Row = Mapping[str, Any]


class TraceError(Exception):
    """The file is no trace; the text says why, and in which line."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    at: float  # seconds
    prompt_tokens: int
    output_tokens: int
    tenant: str = "anonymous"
    priority: int = 0
    max_tokens: int = 0  # that its client allowed; 0: not told
    hashes: tuple[int, ...] = ()  # of each `HASHED_TOKENS` of the prompt, equal where prefixes are
    name: str = ""


def read_trace(path: str) -> list[TraceRequest]:
    """By time of arrival, the first at its own time or at 0; raises TraceError."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise TraceError(f"cannot read {path}: {error}") from None
    found = _requests(path, lines)
    if not found:
        raise TraceError(f"{path}: there is no request in it")
    return sorted(found, key=lambda request: request.at)


def _requests(path: str, lines: list[str]) -> list[TraceRequest]:
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
    raise TraceError(f"{path}: its first line is of no format that is known")


def _json_rows(path: str, lines: list[str]) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            raise TraceError(f"{path}, line {number}: not JSON") from None
        if not isinstance(row, dict):
            raise TraceError(f"{path}, line {number}: not a JSON object")
        rows.append(row)
    return rows


def _each(
    path: str, rows: Iterable[Row], parse: Callable[[Row], TraceRequest], first_line: int
) -> list[TraceRequest]:
    found = []
    for number, row in enumerate(rows, first_line):
        try:
            found.append(_checked(parse(row)))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else error
            raise TraceError(f"{path}, line {number}: {what}") from None
    return found


def _checked(request: TraceRequest) -> TraceRequest:
    if request.prompt_tokens < 1 or request.output_tokens < 1:
        raise ValueError("a request has at least one token of prompt and of answer")
    if request.hashes and len(request.hashes) * HASHED_TOKENS < request.prompt_tokens:
        raise ValueError("hash_ids do not cover the prompt")
    if not 0 <= request.at < math.inf:
        raise ValueError("a time below 0 or without end")
    return request


def _azure(row: Row) -> TraceRequest:
    at = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
    return TraceRequest(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _from_zero(requests: list[TraceRequest]) -> list[TraceRequest]:
    start = min((request.at for request in requests), default=0.0)
    return [replace(request, at=request.at - start) for request in requests]


def _mooncake(row: Row) -> TraceRequest:
    hashes = tuple(int(h) for h in row["hash_ids"])
    return TraceRequest(
        row["timestamp"] / 1e3, int(row["input_length"]), int(row["output_length"]), hashes=hashes
    )


def _tenants(row: Row) -> TraceRequest:
    return TraceRequest(
        float(row["arrival_s"]),
        int(row["prompt_tokens"]),
        int(row["output_tokens"]),
        row["tenant"],
    )


def _recorded(path: str, rows: Iterable[Row]) -> list[TraceRequest]:
    """Who came, with the answers as long as they became.

    A new leader tells again who had come. One whose end is not in the recording is taken to use
    its max_tokens; one that ended before its first token leaves nothing to replay.
    """
    came: dict[str, TraceRequest] = {}
    for number, row in enumerate(rows, 1):
        try:
            for told in row.get("came", ()):
                came.setdefault(told[0], _came(float(row["at"]), *told))
            for name, output_tokens, _ in row.get("ended", ()):
                if name in came:
                    came[name] = replace(came[name], output_tokens=output_tokens)
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(
                f"{path}, line {number}: not an entry of a timeline: {error}"
            ) from None
    return _from_zero([request for request in came.values() if request.output_tokens])


def _came(
    at: float, name: str, tenant: str, prompt_tokens: int, max_tokens: int, priority: int
) -> TraceRequest:
    return _checked(
        TraceRequest(
            at, prompt_tokens, max_tokens, tenant, priority, max_tokens=max_tokens, name=name
        )
    )
