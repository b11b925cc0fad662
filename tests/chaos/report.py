"""What a run showed: as a table, and as JSON."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from tests.chaos.answer import Answer
from tests.chaos.faults import Fault
from tests.chaos.run import Outcome

SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}
ALONE_SECONDS = 10.0  # behind the last fault


def figures(outcome: Outcome) -> dict[str, Any]:
    answers = outcome.answers
    return {
        "options": asdict(outcome.options),
        "requests": len(answers),
        "kinds": _kinds(answers),
        "outcomes": dict(sorted(Counter(answer.outcome for answer in answers).items())),
        "connections": sum(answer.num_connections for answer in answers),
        "tokens_shown": sum(answer.num_tokens for answer in answers),
        "tokens_computed": outcome.tokens_computed,
        "tokens_needed": outcome.tokens_needed,
        "gaps": shares([max(gaps) for answer in answers if (gaps := _gaps(answer))]),
        "settle_seconds": round(outcome.settle_seconds, 1),
        "faults": _stalls(outcome.faults, answers),
        "in_order": [_told(fault, outcome, answers) for fault in outcome.faults],
        "lives": outcome.lives,
        "peak_mib": {name: round(mib, 1) for name, mib in outcome.peak_mib.items()},
        "load": [round(load, 1) for load in outcome.load],
        "wrong": outcome.wrong,
    }


def _kinds(answers: Sequence[Answer]) -> dict[str, int]:
    wishes = [answer.wish for answer in answers]
    return {
        "chat": sum(bool(wish.content) for wish in wishes),
        "not streamed": sum(not wish.streams for wish in wishes),
        "stop string": sum(bool(wish.stop) for wish in wishes),
        "several choices": sum(wish.n > 1 for wish in wishes),
        "Idempotency-Key": sum(bool(wish.key) for wish in wishes),
        "posted twice": sum(wish.num_posts > 1 for wish in wishes),
        "client leaves": sum(wish.leaves_after > 0 for wish in wishes),
        "cancelled": sum(wish.cancels_after > 0 for wish in wishes),
    }


def records(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """What clients were shown, token by token."""
    for answer in outcome.answers:
        tokens, known = answer.wish.tokens(), Counter[int]()
        for at, choice, num_tokens in answer.shown:
            for position in range(known[choice], num_tokens):
                yield {
                    "request": f"{answer.stream}.{choice}",
                    "position": position,
                    "token": tokens[position],
                    "at": round(at - outcome.began_at, 4),
                }
            known[choice] = num_tokens


def stalls(fault: Fault, answers: Sequence[Answer]) -> list[float]:
    """Seconds to the next frame, of each answer that was on its way at the fault and had one."""
    waits = []
    for answer in answers:
        if answer.began_at <= fault.at < answer.over_at:
            waits += [time - fault.at for time in answer.times if time > fault.at][:1]
    return waits


def silences(fault: Fault, until: float, answers: Sequence[Answer]) -> list[float]:
    """The longest time without a frame behind the fault, of each answer that was on its way.

    `until`: when the next fault came, monotonic seconds. A silence belongs to the one before its
    middle.
    """
    longest = []
    for answer in answers:
        if answer.began_at <= fault.at < answer.over_at:
            times = [fault.at, *(time for time in answer.times if time > fault.at)]
            gaps = [b - a for a, b in pairwise(times) if (a + b) / 2 < until]
            longest += [max(gaps)] if gaps else []
    return longest


def _gaps(answer: Answer) -> list[float]:
    return [b - a for a, b in pairwise(answer.times)]


def _stalls(faults: Sequence[Fault], answers: Sequence[Answer]) -> dict[str, dict[str, Any]]:
    """By kind."""
    nexts: dict[str, list[float]] = defaultdict(list)
    longest: dict[str, list[float]] = defaultdict(list)
    for fault in faults:
        nexts[fault.kind] += stalls(fault, answers)
        longest[fault.kind] += silences(fault, _until(fault, faults), answers)
    return {
        kind: {
            "faults": sum(fault.kind == kind for fault in faults),
            "answers": len(nexts[kind]),
            "next": shares(nexts[kind]),
            "silence": shares(longest[kind]),
        }
        for kind in sorted(nexts)
    }


def _until(fault: Fault, faults: Sequence[Fault]) -> float:
    """When the next one came, monotonic seconds."""
    return min((f.at for f in faults if f.at > fault.at), default=fault.at + ALONE_SECONDS)


def _told(fault: Fault, outcome: Outcome, answers: Sequence[Answer]) -> dict[str, Any]:
    silence = silences(fault, _until(fault, outcome.faults), answers)
    return {
        "at": round(fault.at - outcome.began_at, 2),
        "kind": fault.kind,
        "victims": fault.victims,
        "seconds": round(fault.seconds, 2),
        "silence": round(max(silence), 3) if silence else None,
    }


def shares(values: list[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    return {name: _share(ordered, share) for name, share in SHARES.items()}


def _share(ordered: Sequence[float], share: float) -> float | None:
    """The value that this share of all does not exceed; None: there is none."""
    if not ordered:
        return None
    return round(ordered[max(0, -int(-share * len(ordered) // 1) - 1)], 3)


def table(told: dict[str, Any]) -> str:
    """Of `figures`, for people."""
    lines = [f"{'':<18}{'':>15}{'next token, s':>24}{'longest silence, s':>24}"]
    lines += [f"{'fault':<18}{'times':>6}{'answers':>9}" + 2 * "".join(f"{s:>8}" for s in SHARES)]
    for kind, row in told["faults"].items():
        cells = "".join(_cell(row[name][s]) for name in ("next", "silence") for s in SHARES)
        lines.append(f"{kind:<18}{row['faults']:>6}{row['answers']:>9}{cells}")
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in told["outcomes"].items())
    lines += [
        "",
        "of them: " + ", ".join(f"{count} {kind}" for kind, count in told["kinds"].items()),
        f"{told['requests']} requests over {told['connections']} connections: {outcomes}",
        f"{told['tokens_shown']} tokens shown; {told['tokens_computed']} computed, "
        f"prompts included, where {told['tokens_needed']} were needed",
        "lives: " + ", ".join(f"{name} {lives}" for name, lives in told["lives"].items()),
        "MiB at most: " + ", ".join(f"{name} {mib}" for name, mib in told["peak_mib"].items()),
        "seconds between two frames, the longest of each answer: "
        + ", ".join(f"{name} {_cell(told['gaps'][name]).strip()}" for name in SHARES),
        f"quiet after {told['settle_seconds']} s; load of the machine {told['load']}",
        f"{len(told['wrong'])} things wrong",
        *told["wrong"],
    ]
    return "\n".join(lines)


def _cell(seconds: float | None) -> str:
    return f"{'-' if seconds is None else f'{seconds:.2f}':>8}"
