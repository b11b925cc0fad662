"""What a scheduler remembers, and how it changes.

As the only writer of its keys a leader knows what stands in them. So its memory is what it has read
of the keys of others: `requests` and `control` up to an entry, each log up to a step.
"""

from typing import NamedTuple

from tests.model.keys import Op, Redis, put
from tests.model.settings import Settings

TO_ITS_END = 99  # a log that is closed and has been read to its end
ALL = 99  # tokens to keep of a cancelled request


class Leader(NamedTuple):
    epoch: int = 0  # 0: does not lead, and remembers nothing
    takes_over: bool = False  # still closing logs
    lost: frozenset[int] = frozenset()  # names given up
    read: int = 0  # last entry of `requests`
    applied: tuple[int, ...] = ()  # last step of each log
    owners: tuple[int | None, ...] = ()  # as it set them
    wanted: tuple[int | None, ...] = ()  # tokens to keep, of requests that somebody wants to end
    ended: tuple[bool, ...] = ()  # rows that ended by themselves
    unanswered: Op | None = None  # repeated as it was, before anything else is written


def take_over(redis: Redis, settings: Settings) -> tuple[Redis, Leader]:
    """Take the lease, then read `workers` and `owners`: what is named there is lost."""
    redis = redis._replace(epoch=redis.epoch + 1)
    named = redis.workers | {name for name in redis.owners if name is not None}
    leader = Leader(
        redis.epoch,
        True,
        frozenset() if settings.without == "a takeover closes all logs" else named,
        0,
        (0,) * settings.names,
        redis.owners,
        (None,) * settings.choices,
        (False,) * settings.choices,
    )
    return redis, leader


def read(redis: Redis, leader: Leader) -> Leader:
    """One XREAD of all streams. An end mark that is there already wins over a stop."""
    applied, ended = list(leader.applied), list(leader.ended)
    for name, log in enumerate(redis.logs):
        if log is None or applied[name] == TO_ITS_END:
            continue
        for row in (row for step, rows in log.entries if step > applied[name] for row in rows):
            ended[row.choice] |= row.ends and leader.owners[row.choice] == name
        applied[name] = TO_ITS_END if log.closed else log.last
    last = max(leader.read, *redis.requests, 0)
    leader = leader._replace(read=last, applied=tuple(applied), ended=tuple(ended))
    return leader._replace(wanted=_wanted(redis, leader))


def _wanted(redis: Redis, leader: Leader) -> tuple[int | None, ...]:
    wanted = list(leader.wanted)
    for entry in redis.control:
        for choice in range(len(wanted)) if entry.choice is None else (entry.choice,):
            if entry.kind != "attach" and wanted[choice] is None and not leader.ended[choice]:
                wanted[choice] = ALL if entry.kept is None else entry.kept
    return tuple(wanted)


def remember(leader: Leader, op: Op, answer: str, without: str) -> Leader:
    """One of its writes was answered."""
    if answer == "FENCED":
        return Leader()
    leader = leader._replace(unanswered=None)
    if answer == "REFUSED" and without != "planned once the owner is set":
        return leader
    if op.name == "set owner":
        return leader._replace(owners=put(leader.owners, *op.args))
    if op.name == "drop owner":
        return leader._replace(owners=put(leader.owners, op.args[0], None))
    return leader
