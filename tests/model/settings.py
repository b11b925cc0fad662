"""What is explored: how many of what, which faults, and which clause is left out."""

from dataclasses import dataclass

SCHEDULER_CRASHES = "scheduler crashes"
WORKER_CRASHES = "worker crashes"
TAKEOVER = "takeover from a living leader"
FALSE_DEATH = "death of a living worker"
ANSWER_LOST = "answer lost"
LANDS_LATE = "write lands late"
FAULTS = (
    SCHEDULER_CRASHES,
    WORKER_CRASHES,
    TAKEOVER,
    FALSE_DEATH,
    ANSWER_LOST,
    LANDS_LATE,
)


@dataclass(frozen=True)
class Settings:
    """Bounds of one exploration."""

    choices: int = 1  # requests of the one submission
    tokens: int = 2  # the last allowed token of each
    workers: int = 1  # that live at one time
    names: int = 3  # of workers, ever
    depth: int = 1  # plans beyond the one that computes
    is_serving: bool = False  # begin with a leader, a worker and an accepted request
    faults: tuple[str, ...] = ()  # which may happen
    max_faults: int = 1  # how many of them, together
    ends_early: bool = False  # a row may end by itself before its last allowed token
    endless: bool = (
        False  # no row ends by itself: after `tokens` it is merely not planned for a while
    )
    cancels: bool = False  # the client may leave
    stop: int = 0  # the gateway finds a stop string after so many tokens; 0: never
    hears_all: bool = False  # gateways hear each message at once, and repair nothing
    resumes: bool = False  # the client may come back at another gateway
    suspects: bool = False  # deaths are counted
    without: str = ""  # the clause that is left out
