"""What is asked and when: conversations of one turn or more, the same for the same seed."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from cli.bench.options import Options
from cli.bench.prompts import Part
from common.lengths import lengths
from common.traces import HASHED_TOKENS, TraceRequest, read_trace

MAX_TOKENS = 1 << 20  # of a length that is drawn


class WorkloadError(Exception):
    """There is nothing to ask; the text says why."""


@dataclass(frozen=True)
class Turn:
    parts: tuple[Part, ...]  # of its prompt; what came before it is not among them
    output_tokens: int


@dataclass(frozen=True)
class Conversation:
    number: int
    at: float | None  # seconds; None: when a place becomes free
    turns: tuple[Turn, ...]


def conversations(options: Options) -> Iterator[Conversation]:
    """Without end where only the duration bounds them. Raises TraceError and WorkloadError."""
    if options.trace:
        coming = _of_trace(options, read_trace(options.trace))
    else:
        coming = (made(options, number, at) for number, at in enumerate(_arrivals(options)))
    return itertools.islice(
        itertools.takewhile(lambda c: _is_timely(c, options), coming), options.count
    )


def warm_up(options: Options) -> list[Conversation]:
    """Prompts that are not asked again, but for their prefix; lengths as they will come."""
    if not options.trace:
        return [made(options, number, None) for number in range(-options.warmup, 0)]
    coming = itertools.cycle(read_trace(options.trace))
    return [
        Conversation(number, None, (_own(options, number, request),))
        for number, request in zip(range(-options.warmup, 0), coming, strict=False)
    ]


def made(options: Options, number: int, at: float | None) -> Conversation:
    """Its lengths are drawn apart from its prompts, so that one can change without the other."""
    random = Random(f"{options.seed}.{number}.lengths")
    of_prompt, of_answer = lengths(str(options.prompt_tokens)), lengths(str(options.output_tokens))
    turns = []
    for turn in range(options.turns):
        seed = f"{options.seed}.{number}.{turn}" if turn else f"{options.seed}.{number}"
        own = Part(seed, min(of_prompt(random), MAX_TOKENS))
        parts = (own,) if turn else (*_prefix(options, random), own)
        turns.append(Turn(parts, min(of_answer(random), MAX_TOKENS)))
    return Conversation(number, at, tuple(turns))


def _prefix(options: Options, random: Random) -> tuple[Part, ...]:
    if not options.prefix_tokens:
        return ()
    which = random.randrange(options.prefixes)
    return (Part(f"{options.seed}.prefix.{which}", options.prefix_tokens, is_shared=True),)


def _arrivals(options: Options) -> Iterator[float | None]:
    if options.rate is None:
        yield from itertools.repeat(None)
        return
    random, at, shape = Random(options.seed), 0.0, options.gamma_shape
    while True:
        at += random.gammavariate(shape, 1 / (options.rate * shape))
        yield at


def _of_trace(options: Options, found: list[TraceRequest]) -> Iterator[Conversation]:
    if (options.requests or 0) > len(found):
        raise WorkloadError(f"{options.trace} has {len(found)} requests, not {options.requests}")
    return (
        Conversation(
            number,
            (request.at - found[0].at) / options.rate_scale,
            (_told(options, number, request),),
        )
        for number, request in enumerate(found)
    )


def _is_timely(conversation: Conversation, options: Options) -> bool:
    return not (conversation.at and options.duration) or conversation.at <= options.duration


def _told(options: Options, number: int, request: TraceRequest) -> Turn:
    """Prompts are alike exactly as far as their hashes are."""
    if not request.hashes:
        return _own(options, number, request)
    parts = (
        Part(
            f"{options.seed}.block.{block}",
            min(request.prompt_tokens - begin, HASHED_TOKENS),
            is_shared=True,
        )
        for block, begin in zip(
            request.hashes, range(0, request.prompt_tokens, HASHED_TOKENS), strict=False
        )
    )
    return Turn(tuple(parts), request.output_tokens)


def _own(options: Options, number: int, request: TraceRequest) -> Turn:
    return Turn((Part(f"{options.seed}.{number}", request.prompt_tokens),), request.output_tokens)
