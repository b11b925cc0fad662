"""The protocol is right in every state of some small worlds, and wrong without any clause."""

from dataclasses import replace

import pytest

from tests.model.checker import explore
from tests.model.protocol import protocol
from tests.model.settings import (
    ANSWER_LOST,
    FALSE_DEATH,
    FAULTS,
    LANDS_LATE,
    SCHEDULER_CRASHES,
    TAKEOVER,
    Settings,
)

SERVING = Settings(is_serving=True, hears_all=True)

WORLDS = {
    "from nothing": Settings(tokens=1, names=2, hears_all=True, faults=(ANSWER_LOST, LANDS_LATE)),
    "lost and late answers": replace(
        SERVING, names=1, faults=(ANSWER_LOST, LANDS_LATE), max_faults=2
    ),
    "a crash of the scheduler": replace(SERVING, tokens=1, names=2, faults=(SCHEDULER_CRASHES,)),
    "a false death": replace(
        SERVING, tokens=1, names=2, workers=2, faults=(FALSE_DEATH,), suspects=True
    ),
    "a late write and a false death": replace(
        SERVING, tokens=1, faults=(FALSE_DEATH, LANDS_LATE), max_faults=2
    ),
    "a late write and two workers": replace(
        SERVING, tokens=1, names=2, workers=2, faults=(LANDS_LATE,)
    ),
    "a takeover": replace(SERVING, tokens=1, workers=2, faults=(TAKEOVER,)),
    "a takeover and a cancel": replace(
        SERVING, tokens=1, names=2, cancels=True, faults=(TAKEOVER,)
    ),
    "anything once": replace(SERVING, names=2, faults=FAULTS, suspects=True),
    "a row that ends early": replace(
        SERVING, names=2, ends_early=True, faults=(SCHEDULER_CRASHES,)
    ),
    "a client that leaves": replace(
        SERVING, names=2, endless=True, cancels=True, faults=(SCHEDULER_CRASHES,)
    ),
    "two choices": replace(SERVING, tokens=1, names=2, choices=2, faults=(SCHEDULER_CRASHES,)),
    "a gateway that repairs": Settings(is_serving=True, names=1),
    "a stop string": Settings(is_serving=True, names=1, stop=1),
    "a stream taken over": Settings(is_serving=True, names=1, resumes=True),
}

WIDE_WORLDS = {
    "a crash seen from the gateway": Settings(
        is_serving=True, tokens=1, names=2, faults=(SCHEDULER_CRASHES,)
    ),
    "anything once to two choices": replace(SERVING, tokens=1, names=2, choices=2, faults=FAULTS),
    "anything twice": replace(SERVING, tokens=1, faults=FAULTS, max_faults=2),
    "a takeover under two workers and a cancel": replace(
        SERVING, tokens=1, workers=2, cancels=True, faults=(TAKEOVER,)
    ),
    "a stream taken over in a crash": Settings(
        is_serving=True, tokens=1, names=2, resumes=True, faults=(SCHEDULER_CRASHES,)
    ),
}

CLAUSES = {
    "epoch is compared": "a takeover",
    "a takeover closes all logs": "a takeover and a cancel",
    "nothing is committed to a closed log": "a false death",
    "closed before planned elsewhere": "a false death",
    "a closed log is read to its end": "a false death",
    "flushed before the owner changes": "anything once",
    "planned once the owner is set": "a false death",
    "no owner with a closed log": "a late write and a false death",
    "no owner for a finished journal": "lost and late answers",
    "unanswered is repeated before anything else": "a late write and two workers",
    "no next commit before the answer": "lost and late answers",
    "a head that is there is seen": "from nothing",
    "copies are dropped": "from nothing",
    "closed into steps": "a crash of the scheduler",
    "XDEL after the finish": "a crash of the scheduler",
    "EXPIRE last": "a crash of the scheduler",
    "ends of others are completed": "a crash of the scheduler",
    "flushed before trimmed": "a crash of the scheduler",
    "an end mark goes with the finish": "a row that ends early",
    "an end waits for the steps in flight": "a client that leaves",
    "a cancel stays until the end": "a client that leaves",
    "only the next position is shown": "a gateway that repairs",
    "known positions are dropped": "a gateway that repairs",
    "an end beyond what is shown is a jump": "a gateway that repairs",
    "nothing beyond a stop": "a stop string",
}


@pytest.mark.parametrize("world", WORLDS)
def test_protocol_is_right(world: str) -> None:
    verdict = explore(protocol(WORLDS[world]))
    assert verdict.complete
    assert verdict.wrong is None, str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("world", WIDE_WORLDS)
def test_protocol_is_right_in_wide_worlds(world: str) -> None:
    verdict = explore(protocol(WIDE_WORLDS[world]))
    assert verdict.complete
    assert verdict.wrong is None, str(verdict)


@pytest.mark.parametrize("clause", CLAUSES)
def test_every_clause_is_needed(clause: str) -> None:
    verdict = explore(protocol(replace(WORLDS[CLAUSES[clause]], without=clause)))
    assert verdict.wrong is not None, f"right in all {verdict.num_states} states without it"


@pytest.mark.slow
def test_a_second_look_at_owners_only_saves_time() -> None:
    """Without it a repair may end with less than there is, never with something wrong."""
    world = Settings(is_serving=True, tokens=1, names=2, faults=(FALSE_DEATH,))
    verdict = explore(protocol(replace(world, without="owners is read again")))
    assert verdict.wrong is None, str(verdict)
