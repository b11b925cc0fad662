"""policy=fair keeps the service of tenants that always wait within a bound; fcfs does not.

The bound is that of "Fairness in Serving Large Language Models" (OSDI 2024, theorem 4.4): at no
time do two backlogged tenants differ by more than 2 * max(w_p * L_in, w_q * M).
"""

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from common.messages import RequestId
from scheduler.core.request import Request, Status
from scheduler.core.scheduler import Scheduler
from scheduler.core.shares import Shares
from tests.scheduler.core.loads import Loop, combinations, core, lengths, request

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
LONGEST_PROMPT, LONGEST_ANSWER = 16, 24
MAX_RUNNING = 8
NUM_BLOCKS, BLOCK_SIZE = 12, 4
# What the batch holds; each row may stand one token further than its blocks.
BOUND = 2 * max(INPUT_WEIGHT * LONGEST_PROMPT, OUTPUT_WEIGHT * (NUM_BLOCKS * BLOCK_SIZE + 8))
Shape = tuple[int, int]  # the longest prompt and answer of a tenant
Case = tuple[dict[str, Shape], dict[str, float]]  # tenants, and their weights
CHOICES = [
    choices | {"kv": kv, "prefix_cache": kv == "paged"}
    for kv in ("paged", "reserved")
    for choices in combinations("batching", "prefill", "preemption")
    if kv == "paged" or choices["preemption"] != "swap"
]


class Backlog:
    """Each tenant has always more requests waiting than a step can admit: all of one kind."""

    def __init__(
        self,
        scheduler: Scheduler,
        shapes: Mapping[str, Shape],
        weights: Mapping[str, float],
        random: Random,
    ) -> None:
        self.core, self.shapes, self.weights, self.random = scheduler, shapes, weights, random
        self.all: dict[RequestId, Request] = {}
        self.loop = Loop(scheduler, length=self.length)
        self._drawn = lengths(random, LONGEST_ANSWER)
        self._served = dict.fromkeys(shapes, 0.0)  # by those that ended
        self._open: list[Request] = []

    def length(self, request_id: RequestId) -> int:
        return min(self._drawn(request_id), self.all[request_id].ending.max_tokens)

    def fill(self) -> None:
        waiting = Counter(request.tenant for request in self.core.waiting)
        for tenant, (most_prompt, most_answer) in self.shapes.items():
            for _ in range(MAX_RUNNING + 2 - waiting[tenant]):
                self.add(tenant, most_prompt, most_answer)

    def add(self, tenant: str, most_prompt: int, most_answer: int) -> None:
        draw = self.random.randint
        made = request(len(self.all), draw(1, most_prompt), draw(1, most_answer), tenant)
        assert self.core.never_fits(made) is None
        self.all[made.id] = made
        self._open.append(made)
        self.core.add(made)

    def service(self) -> dict[str, float]:
        """By the requests themselves: prompts admitted once, and tokens of answers."""
        ended = [made for made in self._open if made.status is Status.FINISHED]
        self._open = [made for made in self._open if made.status is not Status.FINISHED]
        for made in ended:
            self._served[made.tenant] += self.worth(made)
        now = self._served.copy()
        for made in self._open:
            now[made.tenant] += self.worth(made)
        return now

    def worth(self, made: Request) -> float:
        charge = INPUT_WEIGHT * made.num_prompt * made.was_admitted
        return (charge + OUTPUT_WEIGHT * made.num_output) / self.weights.get(made.tenant, 1.0)

    def worst_gap(self, service: float = 2.5 * BOUND) -> float:
        """Of any two tenants, from the start to any time, until all have had this together.

        More than twice the bound, or not even the worst of schedulers could break it.
        """
        worst, most = 0.0, sum(self.service().values()) + service
        while sum((served := self.service()).values()) < most:
            worst = max(worst, max(served.values()) - min(served.values()))
            self.fill()
            assert self.loop.turn()
        return worst


SHORT, WORDY, LONG = (2, 3), (2, LONGEST_ANSWER), (LONGEST_PROMPT, LONGEST_ANSWER)
READING = (LONGEST_PROMPT, 2)
CASES: list[Case] = [
    ({"x": LONG, "y": SHORT}, {}),
    ({"x": WORDY, "y": READING}, {}),
    ({"x": LONG, "y": SHORT, "z": WORDY}, {}),
    ({"x": WORDY, "y": WORDY}, {"x": 3.0}),
]


def backlog(case: Case, seed: int = 0, **choices: Any) -> Backlog:
    shapes, weights = case
    scheduler = core(
        max_running=MAX_RUNNING,
        shares=Shares(INPUT_WEIGHT, OUTPUT_WEIGHT, weights),
        **{"num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE, "aging_seconds": 1.0, **choices},
    )
    return Backlog(scheduler, shapes, weights, Random(seed))


def named(choices: dict[str, object]) -> str:
    return "-".join(str(value) for value in choices.values() if not isinstance(value, bool))


@pytest.mark.parametrize("choices", CHOICES, ids=named)
def test_tenants_that_always_wait_get_equal_service(choices: dict[str, object]) -> None:
    for seed, case in enumerate(CASES):
        assert backlog(case, seed, policy="fair", **choices).worst_gap() <= BOUND


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_the_bound_holds_while_rows_are_preempted_all_the_time(preemption: str) -> None:
    """Each row takes a block for each token."""
    case: Case = ({"x": WORDY, "y": LONG}, {})
    tried = backlog(case, policy="fair", preemption=preemption, num_blocks=48, block_size=1)
    assert tried.worst_gap(20 * BOUND) <= BOUND
    assert tried.loop.num_preempted > 50


@pytest.mark.slow
@pytest.mark.parametrize("choices", CHOICES, ids=named)
@pytest.mark.parametrize("seed", range(1, 4))
def test_the_bound_holds_in_the_long_run(choices: dict[str, object], seed: int) -> None:
    for case in CASES:
        assert backlog(case, seed, policy="fair", **choices).worst_gap(10 * BOUND) <= BOUND


@pytest.mark.parametrize("policy", ["fcfs", "priority", "shortest", "deadline"])
def test_other_policies_break_the_bound(policy: str) -> None:
    """So it is no property of the load, and the test above can fail."""
    assert backlog(CASES[0], policy=policy).worst_gap(10 * BOUND) > BOUND


# --- Who comes back ---------------------------------------------------------------------------


def test_who_was_away_claims_nothing_for_it() -> None:
    """Since it came back both get the same, however long `x` was alone."""
    tried = backlog(({"x": WORDY}, {}), policy="fair")
    tried.worst_gap(5 * BOUND)
    before = tried.service()["x"]
    tried.shapes = {"x": WORDY, "y": WORDY}
    tried._served["y"] = before
    assert tried.worst_gap(4 * BOUND) <= BOUND


def test_who_comes_back_to_an_empty_line_begins_where_the_last_one_left() -> None:
    shares = Shares()
    scheduler = core(shares=shares, policy="fair")
    loop = Loop(scheduler, length=lambda _: 4)
    for number in range(10):
        scheduler.add(request(number, 4, 4, "x"))
    while loop.turn():
        pass
    assert shares.of("x") == 10 * (4 + 2 * 4)
    scheduler.add(request(99, 4, 4, "y"))
    assert shares.of("y") == shares.of("x")
