"""Nobody waits for ever: not behind a stream of favoured ones, nor where memory is always short."""

from random import Random
from typing import Any

import pytest

from scheduler.core.invariants import check
from scheduler.core.request import Request, Status
from scheduler.core.scheduler import Scheduler
from scheduler.core.strategies import Choices
from tests.scheduler.core.loads import Loop, combinations, core, lengths, request

SECONDS_PER_TURN = 0.1


def turns_until_it_ends(scheduler: Scheduler, old: Request, *, most: int, **newcomer: Any) -> int:
    """Two come with each step, more than can be served; `newcomer` is what favours them."""
    loop = Loop(scheduler, length=lambda _: 2)
    scheduler.add(old)
    for turn in range(most):
        for i in range(2):
            made = request(1 + 2 * turn + i, 3, 2, tenant="y")
            made.arrival = (1 + turn + i / 2) * SECONDS_PER_TURN
            for field, value in newcomer.items():
                setattr(made, field, value)
            scheduler.add(made)
        loop.turn()
        if old.status is Status.FINISHED:
            return turn
    raise AssertionError(f"it waits still after {most} turns")


@pytest.mark.parametrize(
    ("policy", "disfavour", "favour"),
    [
        ("priority", {"priority": 4}, {"priority": 0}),
        ("shortest", {"num_prompt": 40}, {}),
        ("deadline", {"ttft_target": 4.0}, {"ttft_target": 0.1}),
        ("fair", {"priority": 4}, {"priority": -4}),
        ("fair", {"priority": 4, "tenant": "y"}, {"priority": 0}),
        ("fcfs", {"priority": 4}, {"priority": 0}),
    ],
)
@pytest.mark.parametrize("preemption", ["recompute", "swap", "never"])
def test_a_stream_of_favoured_ones_lets_an_old_one_in(
    policy: str, disfavour: dict[str, Any], favour: dict[str, Any], preemption: str
) -> None:
    """What counts against it is worth four seconds at most: 40 turns, and what waited by then."""
    aging = 100.0 if policy == "shortest" else 1.0
    scheduler = core(policy=policy, preemption=preemption, aging_seconds=aging, max_running=2)
    old = request(0, disfavour.get("num_prompt", 3), 2)
    for field in disfavour.keys() - {"num_prompt"}:
        setattr(old, field, disfavour[field])
    turns = turns_until_it_ends(scheduler, old, most=200, **favour)
    if policy in ("priority", "shortest", "deadline"):
        assert turns > 20, "the newcomers were not favoured at all"


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_one_that_is_displaced_again_and_again_ends(preemption: str) -> None:
    scheduler = core(policy="priority", preemption=preemption, aging_seconds=1e6, max_running=1)
    old = request(0, 3, 20)
    old.priority = 1
    loop = Loop(scheduler, length=lambda request_id: 20 if request_id == old.id else 2)
    scheduler.add(old)
    for turn in range(1, 60):
        loop.turn()
        if old.status is Status.FINISHED:
            break
        if old.status is Status.RUNNING:
            scheduler.add(request(turn, 3, 2))
    assert old.status is Status.FINISHED
    assert old.preemptions == scheduler.limits.max_preemptions


def test_one_that_needs_all_of_memory_gets_it_although_small_ones_keep_coming() -> None:
    for preemption in ("recompute", "swap", "never"):
        scheduler = core(policy="fcfs", preemption=preemption, prefix_cache=False)
        turns_until_it_ends(scheduler, request(0, 46, 2), most=60)


# --- A tiny cache -----------------------------------------------------------------------------

EVERYTHING = combinations("policy", "preemption", "prefill", "batching")


def stress(choices: dict[str, str], *, num_requests: int, seed: int, check_every: int) -> Loop:
    """A few tokens of memory for hundreds of requests of three tenants, some of them alike."""
    random = Random(seed)
    scheduler = core(
        num_blocks=9,
        block_size=2,
        max_running=5,
        max_step_tokens=18,
        num_host_blocks=4,
        depth=random.randint(0, 2),
        aging_seconds=3.0,
        **choices,
    )
    loop = Loop(scheduler, length=lengths(random, 8))
    num_added = turn = 0
    while num_added < num_requests or scheduler.requests:
        if num_added < num_requests and len(scheduler.requests) < 20:
            made = request(num_added, random.randint(1, 8), 8, random.choice("xyz"))
            made.tokens = (
                made.tokens
                if random.random() < 0.5
                else [1, 2, 3, 4, 5, 6, 7, 8][: made.num_prompt]
            )
            made.priority = random.randint(0, 3)
            made.ttft_target = random.choice([None, 0.1, 9.0])
            scheduler.add(made)
            num_added += 1
            continue
        assert loop.turn(), "nothing is in flight, and somebody waits"
        turn += 1
        if turn % check_every == 0:
            check(scheduler)
        assert turn < 60 * num_requests, "it goes round in circles"
    assert len(loop.ended) == num_requests
    while loop.turn():
        pass
    assert scheduler.pool.num_free == scheduler.pool.num_blocks
    return loop


@pytest.mark.parametrize("policy", sorted({choices["policy"] for choices in EVERYTHING}))
def test_all_end_on_a_tiny_cache(policy: str) -> None:
    preempted = dict.fromkeys(("recompute", "swap", "never"), 0)
    for seed, choices in enumerate(c for c in EVERYTHING if c["policy"] == policy):
        loop = stress(choices, num_requests=120, seed=seed, check_every=7)
        preempted[choices["preemption"]] += loop.num_preempted
    assert preempted["recompute"] > 10
    assert preempted["swap"] > 10
    assert preempted["never"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("choices", EVERYTHING, ids=lambda choices: "-".join(choices.values()))
def test_a_thousand_end_on_a_tiny_cache(choices: dict[str, str]) -> None:
    for prefix_cache in (True, False):
        for seed in range(2):
            stress(
                {**choices, "prefix_cache": prefix_cache},  # type: ignore[dict-item]
                num_requests=1_000,
                seed=seed,
                check_every=50,
            )


def test_all_allowed_combinations_are_tried() -> None:
    assert len(EVERYTHING) == 5 * 3 * 3 * 2
    for choices in EVERYTHING:
        Choices(**choices)  # type: ignore[arg-type]
