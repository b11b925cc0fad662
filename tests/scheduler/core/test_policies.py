"""Who is next under each policy, and which choices contradict each other."""

import pytest

from common.messages import RequestId
from scheduler.core.shares import Shares
from scheduler.core.strategies import POLICY, TABLES, Choices
from tests.scheduler.core.driving import Drive, started


def order(drive: Drive) -> list[str]:
    """In which those that wait are admitted, one seat after the other."""
    return drive.finish()


# --- Places in line ---------------------------------------------------------------------------


def test_fcfs_knows_arrival_alone() -> None:
    drive = Drive(policy="fcfs", max_running=1)
    drive.add("c", 2, 2, arrival=3, priority=-9, ttft_target=0.1)
    drive.add("a", 9, 9, arrival=1, priority=9, ttft_target=9.0)
    drive.add("b", 2, 2, arrival=2)
    assert order(drive) == ["a", "b", "c"]


def test_shortest_goes_by_prompt_and_longest_answer_together() -> None:
    drive = Drive(policy="shortest", max_running=1, aging_seconds=1000.0)
    drive.add("long", 20, 20, arrival=0)
    drive.add("middle", 2, 30, arrival=1)
    drive.add("short", 10, 2, arrival=2)
    assert order(drive) == ["short", "middle", "long"]


@pytest.mark.parametrize(("arrival", "first"), [(3.9, "short"), (4.1, "long")])
def test_a_thousand_tokens_are_worth_so_much_waiting(arrival: float, first: str) -> None:
    """40 tokens more, at 100 seconds for a thousand."""
    drive = Drive(policy="shortest", max_running=1, aging_seconds=100.0)
    drive.add("long", 22, 22, arrival=0)
    drive.add("short", 2, 2, arrival=arrival)
    assert order(drive)[0] == first


@pytest.mark.parametrize(("target", "first"), [(0.0, "b"), (0.9, "b"), (1.1, "a"), (None, "a")])
def test_deadline_goes_by_when_the_first_token_is_due(target: float | None, first: str) -> None:
    drive = Drive(policy="deadline", max_running=1, ttft_target_seconds=2.0)
    drive.add("a", 2, 2, arrival=10)
    drive.add("b", 2, 2, arrival=11, ttft_target=target)
    assert order(drive)[0] == first


@pytest.mark.parametrize("policy", POLICY)
def test_equal_places_go_by_call(policy: str) -> None:
    drive = Drive(policy=policy, max_running=1)
    for name in "abc":
        drive.add(name, 2, 2)
    assert order(drive) == ["a", "b", "c"]


@pytest.mark.parametrize("policy", POLICY)
def test_who_was_preempted_on_shortage_goes_first(policy: str) -> None:
    drive = Drive(policy=policy, num_blocks=4, block_size=2, depth=0, aging_seconds=1.0)
    drive.add("old", 2, 6, arrival=5, tenant="x")
    drive.add("young", 1, 6, arrival=6, tenant="x")
    while "young" not in drive.preempted:
        drive.step()
    drive.add("new", 1, 1, arrival=0, tenant="y", priority=-9, ttft_target=0.0)
    assert started(drive.next_start())[0] == "young"


def test_a_priority_that_changes_and_changes_back_costs_no_place() -> None:
    drive = Drive(max_running=1)
    for name in "abc":
        drive.add(name, 2, 2)
    for priority in (1, 0):
        drive.scheduler.set_priority(RequestId("a.0"), priority)
    assert order(drive) == ["a", "b", "c"]


# --- fair -------------------------------------------------------------------------------------


def test_the_tenant_that_had_the_least_goes_next() -> None:
    drive = Drive(policy="fair", max_running=1, depth=0)
    for i in range(3):
        drive.add(f"x{i}", 8, 2, arrival=i, tenant="x")
    for i in range(4):
        drive.add(f"y{i}", 2, 1, arrival=9 + i, tenant="y")
    assert order(drive) == ["x0", "y0", "y1", "y2", "x1", "y3", "x2"]


def test_within_a_tenant_priority_and_arrival_count() -> None:
    drive = Drive(policy="fair", max_running=1)
    drive.add("a", 2, 2, arrival=0)
    drive.add("b", 2, 2, arrival=1, priority=-1)
    drive.add("c", 2, 2, arrival=40)
    assert order(drive) == ["b", "a", "c"]


def test_among_rows_the_last_admitted_steps_back_whosever_it_is() -> None:
    drive = Drive(policy="fair", num_blocks=4, block_size=2, depth=0)
    drive.add("late", 2, 6, arrival=9, tenant="y")
    drive.step()
    drive.add("early", 1, 6, arrival=1, tenant="x")
    drive.step()
    assert drive.running == ["late", "early"]
    while not drive.preempted:
        drive.step()
    assert drive.preempted == ["early"]


def test_who_comes_back_stands_where_it_stood_among_rows() -> None:
    drive = Drive(policy="fair")
    for name in "abc":
        drive.add(name, 2, tenant=name)
    drive.step()
    drive.scheduler.hold(RequestId("b.0"))
    drive.step()
    drive.scheduler.release(RequestId("b.0"))
    drive.step()
    assert drive.running == ["a", "b", "c"]


def test_the_prompt_is_charged_once_and_each_token_of_the_answer() -> None:
    shares = Shares(input_weight=1.0, output_weight=2.0)
    drive = Drive(policy="fair", num_blocks=4, block_size=2, depth=0, shares=shares)
    drive.add("old", 2, 6, tenant="x")
    young = drive.add("young", 1, 6, arrival=1, tenant="y")
    drive.finish()
    assert young.preemptions == 1
    assert shares.served == {"x": 2 + 6 * 2, "y": 1 + 6 * 2}


def test_tokens_found_in_the_prefix_cache_are_charged_as_if_computed() -> None:
    shares = Shares()
    drive = Drive(policy="fair", prefix_cache=True, shares=shares)
    drive.add("a", 9, 1, tenant="x")
    drive.finish()
    made = drive.add("b", 9, 1, tenant="x")
    drive.finish()
    assert made.num_cached == 8
    assert shares.served["x"] == 2 * (9 + 2)


def test_a_tenant_with_twice_the_weight_gets_twice_as_much() -> None:
    shares = Shares(weights={"x": 2.0})
    drive = Drive(policy="fair", max_running=1, depth=0, shares=shares)
    for i in range(8):
        drive.add(f"x{i}", 2, 1, arrival=i, tenant="x")
        drive.add(f"y{i}", 2, 1, arrival=i, tenant="y")
    first = order(drive)[:9]
    assert [sum(name[0] == tenant for name in first) for tenant in "xy"] == [6, 3]


# --- What is allowed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [({name: "x"}, f"{name}=x is none of {', '.join(table)}") for name, table in TABLES.items()]
    + [
        (
            {"kv": "reserved"},
            "kv=reserved has a range for each request: prefix_cache must be off",
        ),
        (
            {"kv": "reserved", "prefix_cache": False, "preemption": "swap"},
            "kv=reserved never runs short of blocks: preemption=swap has no use",
        ),
        (
            {"prefill": "whole", "itl_target_seconds": 0.1},
            "prefill=whole cuts no prompt: itl_target has no use",
        ),
    ],
)
def test_choices_that_make_no_sense_are_refused_in_one_sentence(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        Choices(**values)  # type: ignore[arg-type]
    assert str(refusal.value) == message
