"""What Redis says of every request, held against the truth and against what its client was told."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from redis import Redis

from common.messages import FinishReason, Journal, RequestId, SubmissionId, request_id
from common.redis_bus import RedisBus
from common.redis_bus.keys import Keys
from tests.chaos.answer import Answer
from tests.chaos.site import POOL, PREFIX, Site

POISON = "workers that computed it"  # in the error of a request that two deaths are laid to
HEAD, END = "0-1", "-2"  # ids of a journal's entries


async def check(site: Site, answers: Sequence[Answer]) -> list[str]:
    """All that is wrong; also in journals of requests that no client can name."""
    by_submission = {SubmissionId(a.stream.partition("-")[2]): a for a in answers if a.stream}
    named = [request_id(s, choice) for s, a in by_submission.items() for choice in range(a.wish.n)]
    wrong: list[str] = []
    with site.redis() as redis:
        for request in sorted(_stored(redis) | set(named)):
            wrong += [f"{request}: {text}" for text in _check_entries(redis, request)]
    found = await _read(site, named)
    for submission, answer in by_submission.items():
        told = [found[request_id(submission, choice)] for choice in range(answer.wish.n)]
        wrong += [f"{submission}: {text}" for text in check_answer(answer, told)]
    return wrong


async def tokens_needed(site: Site) -> int:
    """Those to compute once, prompts included, for all that was ever answered."""
    with site.redis() as redis:
        found = await _read(site, _stored(redis))
    return sum(
        journal.head.num_prompt - journal.end.cached_tokens + journal.end.kept - 1
        for journal in found.values()
        if journal.head and journal.end and journal.end.kept
    )


def check_answer(answer: Answer, told: Sequence[Journal]) -> Iterator[str]:
    """`told`: by choice. Pure."""
    tokens = answer.wish.tokens()
    reasons = {journal.end.reason for journal in told if journal.end is not None}
    for journal in told:
        if list(journal.tokens) != tokens[: len(journal.tokens)]:
            yield "other tokens than the right ones"
        if journal.end is None:
            yield "it never ended"
        elif journal.end.kept > len(journal.tokens):
            yield f"{len(journal.tokens)} tokens, and {journal.end.kept} in its end"
        elif text := _check_reason(answer, journal):
            yield text
    yield from _check_outcome(answer, reasons)


def _check_outcome(answer: Answer, reasons: set[FinishReason]) -> Iterator[str]:
    has_all = answer.outcome == "whole" and answer.truth.finish == "length"
    if has_all and reasons != {FinishReason.LENGTH}:  # behind a stop string any end may come
        yield f"its client has all, and it ended with {sorted(reasons)}"
    if answer.outcome == "cancelled" and FinishReason.CANCELLED not in reasons:
        yield f"its client was told that it was cancelled, and it ended with {sorted(reasons)}"
    if answer.outcome.startswith("failed"):
        yield from _check_failure(answer, reasons)


def _check_reason(answer: Answer, journal: Journal) -> str:
    assert journal.end is not None
    has_failed = answer.outcome.startswith("failed")
    match journal.end.reason:
        case FinishReason.LENGTH if journal.end.kept == answer.wish.max_tokens:
            return ""
        case FinishReason.STOP if (
            answer.truth.finish == "stop" and journal.end.kept == answer.truth.num_tokens
        ):
            return ""
        case FinishReason.CANCELLED if not answer.wish.key or has_failed:
            return ""  # nobody waits for it
        case FinishReason.CANCELLED if answer.wish.cancels_after:
            return ""
        case FinishReason.ERROR if POISON in journal.end.error:
            return ""
    return f"{journal.end} for {answer.outcome}"


def _check_failure(answer: Answer, reasons: set[FinishReason]) -> Iterator[str]:
    """A client is told of a failure only where there was one; one without a key may be given up."""
    if answer.outcome == "failed: internal_error" and FinishReason.ERROR in reasons:
        return
    if answer.outcome == "failed: cancelled" and not answer.wish.key:
        return
    yield f"its client was told {answer.outcome}, and it ended with {sorted(reasons)}"


def _check_entries(redis: Redis, request: RequestId) -> Iterator[str]:
    """One head, one end, and nothing behind it."""
    entries: Any = redis.xrange(f"{PREFIX}journal:{request}")
    ids: list[str] = [entry for entry, _ in entries]
    ends = [entry for entry in ids if entry.endswith(END)]
    if ids[:1] != [HEAD]:
        yield "its journal has no head"
    if len(ends) != 1 or ids[-1] != ends[0]:
        yield f"{len(ends)} ends in its journal"


def _stored(redis: Redis) -> set[RequestId]:
    pattern = Keys(POOL).journal_pattern()
    return {
        RequestId(key.removeprefix(f"{PREFIX}journal:"))
        for key in redis.scan_iter(match=pattern, count=1000)
    }


async def _read(site: Site, requests: Iterable[RequestId]) -> Mapping[RequestId, Journal]:
    bus = RedisBus(site.server.url, POOL)
    try:
        return {request: await bus.journal(request) for request in requests}
    finally:
        await bus.aclose()
