"""The timeline tells each step once, and all that it takes to replay the pool."""

import time
from collections import Counter
from typing import Any

import orjson

from common.bus import AddTimeline
from common.messages import Chunk, ControlKind, RequestId, StepPlan, WorkerId
from scheduler.core.decision import Decision
from scheduler.timeline import Timeline
from tests.scheduler.pool import STEP_SECONDS, Pool


def busy_pool() -> Pool:
    pool = Pool("a", "b", num_blocks=14, max_running=3)
    for i in range(8):
        pool.submit(f"r{i}", prompt=9, max_tokens=6 + i, tenant=f"t{i % 2}", priority=i % 3)
        pool.turn()
    pool.run()
    pool.check_answers()
    pool.timeline += [_decoded(each.value) for each in _rest(pool)]
    return pool


def _decoded(value: bytes) -> dict[str, Any]:
    decoded: dict[str, Any] = orjson.loads(value)
    return decoded


def _rest(pool: Pool) -> list[AddTimeline]:
    timeline, fleet = pool.leader.timeline, pool.leader.fleet
    assert not timeline.rest(pool.now, fleet), "steps have told of late"
    return timeline.rest(pool.now, fleet)


def test_everybody_comes_and_ends_once() -> None:
    pool = busy_pool()
    came = [tuple(each) for entry in pool.timeline for each in entry["came"]]
    assert came == [(f"r{i}.0", f"t{i % 2}", 9, 6 + i, i % 3) for i in range(8)]
    ended = [tuple(each) for entry in pool.timeline for each in entry["ended"]]
    assert sorted(ended) == [(f"r{i}.0", 6 + i, "length") for i in range(8)]


def test_every_step_tells_its_work_and_its_time() -> None:
    pool = busy_pool()
    steps = [(entry["worker"], entry["step"]) for entry in pool.timeline if entry["step"]]
    assert len(steps) == len(set(steps))
    took = [
        (entry["worker"], step, seconds)
        for entry in pool.timeline
        for step, seconds in entry["seconds"]
    ]
    assert sorted(took) == sorted((worker, step, STEP_SECONDS) for worker, step in steps)
    for entry in pool.timeline:
        assert entry["tokens"] == sum(count for _, count in entry["chunks"]) <= entry["budget"]
        assert entry["worker"] in ({"a", "b"} if entry["step"] else {"a", "b", ""})
    ats = [entry["at"] for entry in pool.timeline]
    assert ats == sorted(ats)


def test_the_tokens_of_all_steps_are_those_that_had_to_be_computed() -> None:
    """Where a request is admitted, it begins anew behind what it need not compute."""
    pool = busy_pool()
    computed: Counter[str] = Counter()
    for entry in pool.timeline:
        for name, cached in entry["admitted"]:
            computed[name] = cached
        for name, count in entry["chunks"]:
            computed[name] += count
    assert computed == {f"r{i}.0": 9 + 6 + i - 1 for i in range(8)}


def test_who_stepped_back_says_how_and_who_is_passed_over_why() -> None:
    pool = busy_pool()
    how = {tuple(each) for entry in pool.timeline for each in entry["preempted"]}
    assert {name for name, _ in how} <= {f"r{i}.0" for i in range(8)}
    assert {reason for _, reason in how} == {"displaced"}  # the later ones are more urgent
    assert {reason for entry in pool.timeline for _, reason in entry["passed"]}


def test_what_no_step_tells_is_told_by_and_by() -> None:
    pool = Pool("a")
    rest = pool.leader.timeline.rest
    pool.control(ControlKind.DRAIN, "worker:a")
    rest(pool.now, pool.leader.fleet)
    pool.submit("r")
    pool.control(ControlKind.CANCEL, "r")
    pool.act()
    [entry] = map(_decoded, (write.value for write in rest(pool.now, pool.leader.fleet)))
    assert (entry["worker"], entry["step"], entry["chunks"]) == ("", 0, [])
    assert entry["came"] == [["r.0", "anonymous", 8, 8, 0]]
    assert entry["ended"] == [["r.0", 0, "cancelled"]]
    assert not rest(pool.now, pool.leader.fleet)


def test_an_entry_costs_little() -> None:
    """It is written for every step: 64 rows in well under a millisecond on any machine."""
    pool = Pool("a")
    worker = pool.leader.fleet.workers[WorkerId("a")]
    worker.core.last = Decision(1, 0, 64)
    chunks = tuple(Chunk(RequestId(f"chatcmpl-{i:024x}.0"), 900, 1, (), True) for i in range(64))
    timeline, plan = Timeline(), StepPlan(1, chunks=chunks)
    times = []
    for _ in range(200):
        start = time.perf_counter()
        timeline.step(1.0, worker, plan)
        times.append(time.perf_counter() - start)
    assert sorted(times)[len(times) // 4] < 0.0004
