"""How long the core takes for a step: `python -m tests.bench.schedule`.

Prints milliseconds, p50 and p99 on the clock and p50 of this thread's own time (the same on an idle
machine), of `schedule` + `apply` over requests that all decode, and of single operations on a line
of 100,000.
"""

import statistics
import time
from collections.abc import Callable

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


def request(index: int, num_prompt: int, max_tokens: int) -> Request:
    submit = Submit(
        SubmissionId(f"s{index}"),
        ((1,) * num_prompt,),
        1,
        Sampling(0),
        Ending(max_tokens),
        GatewayId("g"),
    )
    return Request.from_submit(submit, 0, index)


Times = list[tuple[float, float]]  # seconds on the clock, and of this thread


def decode(num_rows: int, num_waiting: int = 0, num_steps: int = 300) -> Times:
    """Of each step, the one ahead being in flight, as in the service."""
    scheduler = Scheduler(Limits(2 * num_rows, num_rows, 1, 4096), Memory(num_rows * 64, 16))
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
            step, tuple(Sampled(chunk.request_id, step - 1, 5) for chunk in plan.chunks), 0.0
        )
        times.append(timed(lambda result=result: turns.append(turn(scheduler, result))))
        plan, num_advanced = turns.pop()
        assert len(plan.chunks) == num_advanced == num_rows
    return times


def turn(scheduler: Scheduler, result: StepResult) -> tuple[StepPlan, int]:
    plan = scheduler.schedule()
    assert plan
    return plan, len(scheduler.apply(result).advanced)


def line(num_waiting: int) -> dict[str, Times]:
    """Of single operations on a long line."""
    scheduler = Scheduler(Limits(64, 1, 1, 4096), Memory(1024, 16))
    requests = [request(index, 2, 8) for index in range(num_waiting + 2000)]
    for waiting in requests[:num_waiting]:
        scheduler.add(waiting)
    middle = requests[num_waiting // 2 : num_waiting // 2 + 2000]
    return {
        "add": [timed(lambda r=r: scheduler.add(r)) for r in requests[num_waiting:]],
        "hold": [timed(lambda r=r: scheduler.hold(r.id)) for r in middle],
        "release": [timed(lambda r=r: scheduler.release(r.id)) for r in middle],
        "cancel": [timed(lambda r=r: scheduler.end(r.id, FinishReason.CANCELLED)) for r in middle],
    }


def timed(call: Callable[[], object]) -> tuple[float, float]:
    start, own_start = time.perf_counter(), time.thread_time()
    call()
    own = time.thread_time() - own_start
    return time.perf_counter() - start, own


def show(name: str, times: Times) -> None:
    clock = [seconds for seconds, _ in times]
    p50, p99 = statistics.median(clock), statistics.quantiles(clock, n=100)[98]
    own = statistics.median(seconds for _, seconds in times)
    print(f"{name:44} p50 {p50 * 1e3:8.4f}   p99 {p99 * 1e3:8.4f}   own p50 {own * 1e3:8.4f}")


def main() -> None:
    for num_rows in (64, 256, 1024):
        show(f"schedule + apply, {num_rows} decoding", decode(num_rows))
    show("schedule + apply, 256 decoding, 100,000 wait", decode(256, 100_000))
    for name, seconds in line(100_000).items():
        show(f"{name}, 100,000 wait", seconds)


if __name__ == "__main__":
    main()
