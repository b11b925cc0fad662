"""What must hold in every state, and when all is over."""

from tests.model.gateway import Stream
from tests.model.keys import Journal, Redis
from tests.model.settings import Settings
from tests.model.state import State


def wrong(state: State, settings: Settings) -> str | None:
    """Which promise this state breaks."""
    for choice, journal in enumerate(state.redis.journals):
        shown = [g.streams[choice].shown for g in state.gateways if g.streams]
        if text := _wrong_tokens(journal or Journal(), shown):
            return text
        if _is_out_of_reach(state.redis, choice):
            return "the owner's log does not have the newest tokens"
        if journal and journal.expires and _is_needed(state.redis, choice):
            return "the journal of a request that is not over may expire"
    return None


def _wrong_tokens(journal: Journal, shown: list[tuple[int, ...]]) -> str | None:
    if journal.num_ends > 1:
        return "a request ended twice"
    if journal.kept is not None and any(len(tokens) > journal.kept for tokens in shown):
        return "tokens were shown that do not count"
    longest = max([*shown, journal.tokens], key=len)
    if any(tokens != longest[: len(tokens)] for tokens in [*shown, journal.tokens]):
        return "a token was lost, repeated, reordered or drawn twice"
    if any(token < 0 for token in longest[:-1]):
        return "a token follows an end token"
    return None


def _is_out_of_reach(redis: Redis, choice: int) -> bool:
    """Whether a token is in a log that is not its owner's, and not in the journal."""
    journal = redis.journals[choice]
    if journal is None or journal.kept is not None:
        return False
    return any(
        row.choice == choice and row.position >= len(journal.tokens)
        for name, log in enumerate(redis.logs)
        if log and name != redis.owners[choice]
        for _, rows in log.entries
        for row in rows
    )


def _is_needed(redis: Redis, choice: int) -> bool:
    traces = (redis.owners[choice], redis.suspects[choice])
    return 1 in redis.requests or any(trace is not None for trace in traces)


def at_rest(state: State, settings: Settings) -> bool:
    """All has ended, all is shown, nothing is left that has no time to live."""
    redis = state.redis
    left = redis.requests or redis.control or state.late
    traces = [trace for trace in redis.owners + redis.suspects if trace is not None]
    if left or traces or any(g.phase == "submitting" for g in state.gateways):
        return False
    return all(
        _is_over(journal, [g.streams[choice] for g in state.gateways if g.streams], settings)
        for choice, journal in enumerate(redis.journals)
    )


def _is_over(journal: Journal | None, streams: list[Stream], settings: Settings) -> bool:
    if journal is None:
        return all(not stream.shown for stream in streams) and not streams
    if journal.kept is None or not journal.expires:
        return False
    kept = min(journal.kept, settings.stop or journal.kept)
    return all(stream.done and len(stream.shown) == kept for stream in streams)
