"""How long the core takes for a step: `python -m tests.bench.schedule`.

Prints milliseconds, p50 and p99 on the clock and p50 of this thread's own time (the same on an idle
machine), of `schedule` + `apply` over requests that all decode, under several choices, and of
single operations on lines of 1,000 and of 100,000 under each policy.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

from common.messages import (
    Ending,
    FinishReason,
    GatewayId,
    Sampled,
    Sampling,
    StepPlan,
    StepResult,
    SubmissionId,
    Submit,
)
from scheduler.core.request import Request
from scheduler.core.scheduler import Limits, Memory, Scheduler
from scheduler.core.strategies import POLICY, Choices

NUM_TENANTS = 10
NUM_TIMED = 400  # operations of a kind


def request(index: int, num_prompt: int, max_tokens: int) -> Request:
    submit = Submit(
        SubmissionId(f"s{index}"),
        ((1,) * num_prompt,),
        1,
        Sampling(0),
        Ending(max_tokens),
        GatewayId("g"),
        tenant=f"tenant{index % NUM_TENANTS}",
    )
    return Request.from_submit(submit, 0, index)


Times = list[tuple[float, float]]  # seconds on the clock, and of this thread


def decode(num_rows: int, num_waiting: int = 0, num_steps: int = 300, **choices: Any) -> Times:
    """Of each step, the one ahead being in flight, as in the service."""
    scheduler = Scheduler(
        Limits(2 * num_rows, num_rows, 1, 4096),
        Memory(num_rows * 64, 16),
        Choices(**choices),
        hash_key=b"key",
    )
    for index in range(num_rows):
        scheduler.add(request(index, 2, 1000))
    for index in range(num_rows, num_rows + num_waiting):
        scheduler.add(request(index, 100, 100))
    times: Times = []
    turns: list[tuple[StepPlan, int]] = []
    plan = scheduler.schedule()
    assert plan
    assert len(plan.chunks) == num_rows, "not all of them decode"
    for step in range(1, num_steps):
        result = StepResult(
            step, tuple(Sampled(chunk.request_id, step - 1, 5) for chunk in plan.chunks), 0.02
        )
        times.append(timed(lambda result=result: turns.append(turn(scheduler, result))))
        plan, num_advanced = turns.pop()
        assert len(plan.chunks) == num_advanced == num_rows
    return times


def turn(scheduler: Scheduler, result: StepResult) -> tuple[StepPlan, int]:
    plan = scheduler.schedule()
    assert plan
    return plan, len(scheduler.apply(result))


def line(num_waiting: int, policy: str) -> dict[str, Times]:
    """Of single operations on a long line."""
    scheduler = Scheduler(
        Limits(64, 1, 1, 4096), Memory(1024, 16), Choices(policy=policy, prefix_cache=False)
    )
    requests = [request(index, 2, 8) for index in range(num_waiting + NUM_TIMED)]
    for waiting in requests[:num_waiting]:
        scheduler.add(waiting)
    middle = requests[num_waiting // 2 :][:NUM_TIMED]
    return {
        "add": [timed(lambda r=r: scheduler.add(r)) for r in requests[num_waiting:]],
        "hold": [timed(lambda r=r: scheduler.hold(r.id)) for r in middle],
        "release": [timed(lambda r=r: scheduler.release(r.id)) for r in middle],
        "priority": [timed(lambda r=r: scheduler.set_priority(r.id, 1)) for r in middle],
        "take back": [timed(lambda r=r: scheduler.take_back(r.id)) for r in middle[::2]],
        "cancel": [
            timed(lambda r=r: scheduler.end(r.id, FinishReason.CANCELLED)) for r in middle[1::2]
        ],
        "next": [timed(lambda: follow(scheduler)) for _ in middle],
    }


def follow(scheduler: Scheduler) -> None:
    """The head of the line leaves, and another one is."""
    head = scheduler.waiting.head
    assert head
    scheduler.take_back(head.id)
    scheduler.shares.charge_input(head.tenant, head.num_prompt)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    start, own_start = time.perf_counter(), time.thread_time()
    call()
    own = time.thread_time() - own_start
    return time.perf_counter() - start, own


def show(name: str, times: Times) -> None:
    clock = [seconds for seconds, _ in times]
    p50, p99 = statistics.median(clock), statistics.quantiles(clock, n=100)[98]
    own = statistics.median(seconds for _, seconds in times)
    print(f"{name:62} p50 {p50 * 1e3:8.4f}   p99 {p99 * 1e3:8.4f}   own p50 {own * 1e3:8.4f}")


DECODING: dict[str, dict[str, Any]] = {
    "as set": {},
    "no prefix cache": {"prefix_cache": False},
    "fair": {"policy": "fair"},
    "itl target": {"itl_target_seconds": 0.05},
    "never": {"preemption": "never"},
    "reserved": {"kv": "reserved", "prefix_cache": False},
}


def main() -> None:
    for num_rows in (64, 256, 1024):
        for name, choices in DECODING.items():
            show(f"schedule + apply, {num_rows} decoding, {name}", decode(num_rows, **choices))
    for name in ("as set", "fair"):
        show(
            f"schedule + apply, 256 decoding, 100,000 wait, {name}",
            decode(256, 100_000, **DECODING[name]),
        )
    for policy in POLICY:
        for num_waiting in (1_000, 100_000):
            for name, seconds in line(num_waiting, policy).items():
                show(f"{policy}: {name}, {num_waiting:,} wait", seconds)


if __name__ == "__main__":
    main()
