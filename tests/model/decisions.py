"""Which writes a leader may do next, from what it remembers and what stands in its own keys.

A crash may come between any two, and a new leader then goes on exactly where the old one was cut.
"""

from collections.abc import Iterator

from tests.model.keys import Journal, Op, Plan, Redis
from tests.model.scheduler import TO_ITS_END, Leader
from tests.model.settings import Settings


class Decisions:
    """The writes of one leader in one state."""

    def __init__(self, redis: Redis, leader: Leader, settings: Settings) -> None:
        self.redis = redis
        self.leader = leader
        self.settings = settings
        self.without = settings.without

    def writes(self) -> Iterator[Op]:
        if self.leader.unanswered:
            yield self.leader.unanswered
            if self.without != "unanswered is repeated before anything else":
                return
        if self.leader.takes_over:
            yield from self._close_lost()
            return
        for choice, journal in enumerate(self.redis.journals):
            yield from self._request(choice, journal)
        yield from self._entries()
        yield from self._close_lost()
        for name in range(self.settings.names):
            yield from self._worker(name)

    def has_closed_all(self) -> bool:
        return not any(True for _ in self._close_lost())

    def _op(self, name: str, *args: object) -> Op:
        return Op(name, self.leader.epoch, args)

    # --- Requests -----------------------------------------------------------------------------

    def _request(self, choice: int, journal: Journal | None) -> Iterator[Op]:
        redis = self.redis
        if journal is None:
            if redis.requests and redis.requests[0] <= self.leader.read:
                yield self._op("head", choice)
        elif journal.kept is None:
            yield from self._running(choice, journal)
        elif self.leader.owners[choice] is not None:
            yield self._op("drop owner", choice)
        elif redis.suspects[choice] is not None:
            yield self._op("drop suspect", choice)

    def _running(self, choice: int, journal: Journal) -> Iterator[Op]:
        if not self.leader.read:
            return  # only `requests` says what to run
        tokens = self._tokens(choice, journal)
        unflushed = tokens[len(journal.tokens) :]
        if unflushed:
            yield self._op("flush", choice, unflushed, len(tokens))
        wanted = self.leader.wanted[choice]
        if self.leader.ended[choice] or wanted is not None:
            if not unflushed and self._may_end(choice):
                kept = len(tokens) if wanted is None else min(wanted, len(tokens))
                yield self._op("finish", choice, len(tokens), kept)
        elif self._is_free(choice, has_unflushed=bool(unflushed)):
            for name in self.redis.workers - self.leader.lost:
                yield self._op("set owner", choice, name)

    def _tokens(self, choice: int, journal: Journal) -> tuple[int, ...]:
        """All that are known: the journal, then what was applied of the owner's log."""
        tokens, owner = journal.tokens, self.leader.owners[choice]
        log = self.redis.logs[owner] if owner is not None else None
        if owner is not None and log is not None:
            for step, rows in log.entries:
                for row in rows if step <= self.leader.applied[owner] else ():
                    if row.choice == choice and row.position == len(tokens):
                        tokens = (*tokens, row.token)
        return tokens

    def _in_flight(self, choice: int) -> int:
        """Steps that name the request and are neither applied nor moot."""
        owner = self.leader.owners[choice]
        if owner is None:
            return 0
        plans = self.redis.steps[owner][self.leader.applied[owner] :]
        own = [plan.rows for plan in plans if plan.epoch == self.leader.epoch]
        return sum(any(row[0] == choice for row in rows) for rows in own)

    def _may_end(self, choice: int) -> bool:
        return (
            self.leader.ended[choice]
            or self._in_flight(choice) == 0
            or self.without == "an end waits for the steps in flight"
        )

    def _is_free(self, choice: int, *, has_unflushed: bool) -> bool:
        """Whether the request has no worker that might still commit for it, or hold its tokens."""
        owner = self.leader.owners[choice]
        if owner is None:
            return True
        if owner not in self.leader.lost:
            return False
        if has_unflushed and self.without != "flushed before the owner changes":
            return False
        log = self.redis.logs[owner]
        if log is None or not log.closed:
            return self.without == "closed before planned elsewhere"
        return (
            self.leader.applied[owner] == TO_ITS_END
            or self.without == "a closed log is read to its end"
        )

    # --- Entries of `requests` and `control` ----------------------------------------------------

    def _entries(self) -> Iterator[Op]:
        journals, without = self.redis.journals, self.without
        ended = all(journal and journal.kept is not None for journal in journals)
        no_trace = not any(v is not None for v in self.leader.owners + self.redis.suspects)
        may_leave = ended and no_trace
        if without == "XDEL after the finish":
            may_leave = all(journals)
        yield from self._requests(may_leave=may_leave)
        for entry in set(self.redis.control):
            if self._is_done(entry.choice) or without == "a cancel stays until the end":
                yield self._op("drop control", entry)
        if ended and ((no_trace and 1 not in self.redis.requests) or without == "EXPIRE last"):
            yield from self._expire()

    def _requests(self, *, may_leave: bool) -> Iterator[Op]:
        """The first entry leaves when all has ended, a later one is a copy."""
        seen = [entry for entry in self.redis.requests if entry <= self.leader.read]
        if self.without == "copies are dropped":
            seen = [entry for entry in seen if entry == 1]
        if may_leave and seen and seen[0] > 1 and self.without == "a head that is there is seen":
            yield from (self._op("head", choice) for choice in range(self.settings.choices))
        elif may_leave and seen:
            yield self._op("drop request", seen[0])
        elif seen[1:]:
            yield self._op("drop request", seen[1])

    def _is_done(self, choice: int | None) -> bool:
        """Whether what a control entry asked for is written, or moot."""
        journals = self.redis.journals if choice is None else (self.redis.journals[choice],)
        if not self.redis.requests and not any(journals):
            return True
        return all(journal and journal.kept is not None for journal in journals)

    def _expire(self) -> Iterator[Op]:
        if self.without == "ends of others are completed" and not self.leader.read:
            return
        for choice, journal in enumerate(self.redis.journals):
            if journal and not journal.expires:
                yield self._op("expire journal", choice)

    # --- Workers --------------------------------------------------------------------------------

    def _close_lost(self) -> Iterator[Op]:
        for name in self.leader.lost:
            log = self.redis.logs[name]
            if log is None or not log.closed:
                yield from self._close(name)
            elif name not in self.redis.closed_steps and self.without != "closed into steps":
                yield self._op("close steps", name)

    def _close(self, name: int) -> Iterator[Op]:
        """A takeover is nobody's fault; another death is held against all that took part."""
        if self.settings.suspects and not self.leader.takes_over:
            for choice, owner in enumerate(self.leader.owners):
                journal = self.redis.journals[choice]
                is_running = journal is not None and journal.kept is None
                if owner == name and is_running and self.redis.suspects[choice] != name:
                    yield self._op("set suspect", choice, name)
                    return
        yield self._op("close", name)

    def _worker(self, name: int) -> Iterator[Op]:
        log = self.redis.logs[name]
        if name in self.leader.lost:
            if log and log.closed and name in self.redis.workers and name not in self.leader.owners:
                yield self._op("expire log", name) if log.entries else self._op("drop worker", name)
            return
        if log is None:
            return
        if up_to := self._trimmable(name):
            yield self._op("trim", name, up_to)
        if rows := self._next_rows(name):
            yield self._op(
                "plan", name, len(self.redis.steps[name]) + 1, Plan(self.leader.epoch, rows)
            )

    def _trimmable(self, name: int) -> int:
        """The last applied step behind which everything is in journals, end marks included."""
        log = self.redis.logs[name]
        assert log is not None
        up_to = 0
        for step, rows in log.entries:
            if step > self.leader.applied[name] or not all(
                self._is_in_journal(row.choice, row.position, ends=row.ends) for row in rows
            ):
                break
            up_to = step
        return up_to

    def _is_in_journal(self, choice: int, position: int, *, ends: bool) -> bool:
        journal = self.redis.journals[choice]
        assert journal is not None
        if self.without == "flushed before trimmed":
            return True
        if ends and self.without != "an end mark goes with the finish":
            return journal.kept is not None
        return position < len(journal.tokens)

    def _next_rows(self, name: int) -> tuple[tuple[int, int], ...]:
        redis, leader = self.redis, self.leader
        if len(redis.steps[name]) - leader.applied[name] > self.settings.depth:
            return ()
        rows = []
        for choice, journal in enumerate(redis.journals):
            if leader.owners[choice] != name or journal is None or journal.kept is not None:
                continue
            if leader.ended[choice] or leader.wanted[choice] is not None:
                continue
            position = len(self._tokens(choice, journal)) + self._in_flight(choice)
            if position < self.settings.tokens:
                rows.append((choice, position))
        return tuple(rows)
