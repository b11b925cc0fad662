"""What stands in Redis, and its functions: each is one call, one write, one instant.

    protocol              here
    requests              `Redis.requests`: entries of the one submission: 1, 2 …
    control               `Redis.control`
    lease                 `Redis.epoch`; who holds it knows the same number
    workers               `Redis.workers`: names whose field stands
    results:<worker>      `Redis.logs[name]`: the log; None: does not exist
    steps:<worker>        `Redis.steps[name]`: plans 1, 2, 3 …; `Redis.closed_steps`
    journal:<request>     `Redis.journals[choice]`; None: does not exist
    owners, suspects      `Redis.owners[choice]`, `Redis.suspects[choice]`
    tokens:<gateway>      not here: `call` returns what is published

A token says which worker drew it and for which position: one that is drawn twice differs. Below
zero it is an end token.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

END = -1  # position of the notice that a request has ended


class Row(NamedTuple):
    choice: int
    position: int
    token: int
    ends: bool


class Plan(NamedTuple):
    epoch: int  # of the leader that wrote it
    rows: tuple[tuple[int, int], ...]  # (choice, position)


class Log(NamedTuple):
    last: int = 0  # id of its last entry
    entries: tuple[tuple[int, tuple[Row, ...]], ...] = ()  # (step, rows), trimmed from the left
    closed: bool = False


class Journal(NamedTuple):
    tokens: tuple[int, ...] = ()
    kept: int | None = None  # in the finish
    num_ends: int = 0
    expires: bool = False


class Control(NamedTuple):
    kind: str  # cancel, stop, attach
    choice: int | None = None  # None: all
    kept: int | None = None


class Notice(NamedTuple):
    choice: int
    position: int  # END: `token` is the number of tokens kept
    token: int


class Redis(NamedTuple):
    requests: tuple[int, ...]
    added: int  # entries that `requests` ever had
    control: tuple[Control, ...]
    epoch: int
    workers: frozenset[int]
    logs: tuple[Log | None, ...]
    steps: tuple[tuple["Plan", ...], ...]  # [name][step - 1]
    journals: tuple[Journal | None, ...]
    owners: tuple[int | None, ...]
    suspects: tuple[int | None, ...]  # the last death that the request took part in
    closed_steps: frozenset[int] = frozenset()  # names whose `steps` say `closed`


class Op(NamedTuple):
    """One call; `epoch` is 0 for those that need no lease."""

    name: str
    epoch: int
    args: tuple[Any, ...] = ()


class Answer(NamedTuple):
    redis: Redis
    text: str = "OK"
    published: tuple[Notice, ...] = ()


def put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def call(redis: Redis, op: Op, without: str) -> Answer:
    """Land one call. `without`: the clause that is left out."""
    if op.epoch and op.epoch != redis.epoch and without != "epoch is compared":
        return Answer(redis, "FENCED")
    function = FUNCTIONS[op.name]
    return function(redis, without, *op.args)


# --- Of gateways and workers ------------------------------------------------------------------


def submit(redis: Redis, without: str) -> Answer:
    added = redis.added + 1
    return Answer(redis._replace(requests=(*redis.requests, added), added=added))


def control(redis: Redis, without: str, entry: Control) -> Answer:
    return Answer(redis._replace(control=(*redis.control, entry)))


def register(redis: Redis, without: str, name: int) -> Answer:
    return Answer(redis._replace(workers=redis.workers | {name}))


def open_log(redis: Redis, without: str, name: int) -> Answer:
    if name not in redis.workers:
        return Answer(redis, "REFUSED")
    if redis.logs[name] is not None:
        return Answer(redis)
    return Answer(redis._replace(logs=put(redis.logs, name, Log())))


def commit(redis: Redis, without: str, name: int, step: int, rows: tuple[Row, ...]) -> Answer:
    log = redis.logs[name]
    if log is None or (log.closed and without != "nothing is committed to a closed log"):
        return Answer(redis, "CLOSED")
    published = tuple(Notice(row.choice, row.position, row.token) for row in rows)
    if step == log.last:
        return Answer(redis, "DUPLICATE", published)
    if step < log.last:
        return Answer(redis, "REFUSED")
    log = log._replace(last=step, entries=(*log.entries, (step, rows)))
    return Answer(redis._replace(logs=put(redis.logs, name, log)), "OK", published)


# --- Of the scheduler -------------------------------------------------------------------------


def add_plan(redis: Redis, without: str, name: int, step: int, plan: Plan) -> Answer:
    if step != len(redis.steps[name]) + 1:
        return Answer(redis, "REFUSED")
    return Answer(redis._replace(steps=put(redis.steps, name, (*redis.steps[name], plan))))


def head(redis: Redis, without: str, choice: int) -> Answer:
    if redis.journals[choice] is not None and without != "a head that is there is seen":
        return Answer(redis, "REFUSED")
    old = redis.journals[choice] or Journal()
    return Answer(_journal(redis, choice, Journal(num_ends=old.num_ends)))


def flush(redis: Redis, without: str, choice: int, tokens: tuple[int, ...], total: int) -> Answer:
    """Entry `<total>-0`: the last `tokens` of `total`."""
    journal = redis.journals[choice]
    if journal is None or journal.kept is not None or len(journal.tokens) >= total:
        return Answer(redis, "REFUSED")
    return Answer(_journal(redis, choice, journal._replace(tokens=journal.tokens + tokens)))


def finish(redis: Redis, without: str, choice: int, total: int, kept: int) -> Answer:
    """Entry `<total>-2`."""
    journal = redis.journals[choice]
    if journal is None or journal.kept is not None or len(journal.tokens) > total:
        return Answer(redis, "REFUSED")
    journal = journal._replace(kept=kept, num_ends=journal.num_ends + 1)
    return Answer(_journal(redis, choice, journal), "OK", (Notice(choice, END, kept),))


def expire_journal(redis: Redis, without: str, choice: int) -> Answer:
    journal = redis.journals[choice]
    assert journal is not None
    return Answer(_journal(redis, choice, journal._replace(expires=True)))


def set_owner(redis: Redis, without: str, choice: int, name: int) -> Answer:
    log, journal = redis.logs[name], redis.journals[choice]
    is_open = log is not None and not log.closed
    if not is_open and without != "no owner with a closed log":
        return Answer(redis, "REFUSED")
    is_running = journal is not None and journal.kept is None
    if not is_running and without != "no owner for a finished journal":
        return Answer(redis, "REFUSED")
    return Answer(redis._replace(owners=put(redis.owners, choice, name)))


def drop_owner(redis: Redis, without: str, choice: int) -> Answer:
    return Answer(redis._replace(owners=put(redis.owners, choice, None)))


def set_suspect(redis: Redis, without: str, choice: int, name: int) -> Answer:
    return Answer(redis._replace(suspects=put(redis.suspects, choice, name)))


def drop_suspect(redis: Redis, without: str, choice: int) -> Answer:
    return Answer(redis._replace(suspects=put(redis.suspects, choice, None)))


def drop_request(redis: Redis, without: str, entry: int) -> Answer:
    return Answer(redis._replace(requests=tuple(e for e in redis.requests if e != entry)))


def drop_control(redis: Redis, without: str, entry: Control) -> Answer:
    at = redis.control.index(entry) if entry in redis.control else len(redis.control)
    return Answer(redis._replace(control=redis.control[:at] + redis.control[at + 1 :]))


def drop_worker(redis: Redis, without: str, name: int) -> Answer:
    return Answer(redis._replace(workers=redis.workers - {name}))


def close(redis: Redis, without: str, name: int) -> Answer:
    log = redis.logs[name] or Log()
    return Answer(redis._replace(logs=put(redis.logs, name, log._replace(closed=True))))


def close_steps(redis: Redis, without: str, name: int) -> Answer:
    return Answer(redis._replace(closed_steps=redis.closed_steps | {name}))


def trim(redis: Redis, without: str, name: int, step: int) -> Answer:
    """Forget results up to `step`."""
    log = redis.logs[name]
    assert log is not None
    entries = tuple(entry for entry in log.entries if entry[0] > step)
    return Answer(redis._replace(logs=put(redis.logs, name, log._replace(entries=entries))))


def expire_log(redis: Redis, without: str, name: int) -> Answer:
    """What it holds is gone at once, which is the worst case; the name stays closed."""
    log = redis.logs[name]
    assert log is not None
    return Answer(redis._replace(logs=put(redis.logs, name, log._replace(entries=()))))


def _journal(redis: Redis, choice: int, journal: Journal) -> Redis:
    return redis._replace(journals=put(redis.journals, choice, journal))


FUNCTIONS: dict[str, Callable[..., Answer]] = {
    "submit": submit,
    "control": control,
    "register": register,
    "open": open_log,
    "commit": commit,
    "plan": add_plan,
    "head": head,
    "flush": flush,
    "finish": finish,
    "expire journal": expire_journal,
    "set owner": set_owner,
    "drop owner": drop_owner,
    "set suspect": set_suspect,
    "drop suspect": drop_suspect,
    "drop request": drop_request,
    "drop control": drop_control,
    "drop worker": drop_worker,
    "close": close,
    "close steps": close_steps,
    "trim": trim,
    "expire log": expire_log,
}
